"""The flags that `loadgen run` and `loadgen sweep` share. None: not given, so that a plan file may say it."""

from __future__ import annotations

import argparse
from pathlib import Path

from wattserve_loadgen.arguments import (
    duration,
    listed,
    meter,
    number,
    patience,
    peer,
    port,
    positive_float,
    positive_int,
    ramp,
    target,
    whole,
)
from wattserve_loadgen.plan.scenarios import IN_FLIGHT, SCENARIOS

PRESETS = ("look", "quick", "full")


def add_places(parser: argparse.ArgumentParser) -> None:
    """Which server, which rows, where to."""
    parser.add_argument(
        "--target", metavar="HOST:PORT", type=target, help="the server's gRPC address (needed, but for peers)"
    )
    parser.add_argument(
        "--dataset", type=Path, metavar="DIR", help="a folder made by `loadgen prepare` (needed)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go (needed)")
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE.toml",
        help="settings named as the flags are, which win over it; a results folder holds its own, plan.toml",
    )


def add_loads(parser: argparse.ArgumentParser) -> None:
    """Of a sweep: every load that is named is measured."""
    loads = parser.add_argument_group("load")
    defaults = " (default: 1,2,4,8,16,32; look: 1,4,16)"
    _add_loads(loads, concurrency="1,2,4", defaults=defaults, rate="50,100", scenarios=tuple(SCENARIOS))


def add_one_load(parser: argparse.ArgumentParser) -> None:
    """Of a run: exactly one. The scenario `server` is a search over many."""
    loads = parser.add_argument_group("load (one of them)")
    scenarios = tuple(name for name, scenario in SCENARIOS.items() if scenario.load)
    _add_loads(loads, concurrency="8", defaults="", rate="100", scenarios=scenarios)


def _add_loads(
    loads: argparse._ArgumentGroup,
    *,
    concurrency: str,
    defaults: str,
    rate: str,
    scenarios: tuple[str, ...],
) -> None:
    loads.add_argument(
        "--concurrency",
        type=listed(int),
        metavar=concurrency,
        help=f"closed loop: requests in flight at once{defaults}",
    )
    loads.add_argument(
        "--rate",
        type=listed(float),
        metavar=rate,
        help="open loop: requests per second, when they are due",
    )
    loads.add_argument(
        "--arrival",
        choices=("poisson", "constant"),
        help="of --rate: at random instants or evenly spaced (default: poisson)",
    )
    loads.add_argument(
        "--ramp", type=listed(ramp), metavar="10:200", help="open loop: a rate that grows over the window"
    )
    loads.add_argument(
        "--arrivals",
        type=Path,
        action="append",
        metavar="FILE",
        help="open loop: recorded instants; repeat for several files",
    )
    loads.add_argument(
        "--speed", type=listed(float), metavar="1,2", help="of --arrivals: as many times as fast (default: 1)"
    )
    loads.add_argument(
        "--offline",
        type=positive_int,
        nargs="?",
        const=IN_FLIGHT,
        metavar="IN_FLIGHT",
        help=f"everything at once: throughput alone (default: at most {IN_FLIGHT} in flight)",
    )
    loads.add_argument(
        "--scenario",
        choices=scenarios,
        help="load and least counts after MLPerf's scenario, with --preset full; what differs is said",
    )
    loads.add_argument(
        "--slo",
        metavar="OBJECTIVES",
        help="like 'p99<50ms' or 'p50<10ms,p99<50ms': the share of requests within it is reported",
    )


def add_time(parser: argparse.ArgumentParser) -> None:
    time = parser.add_argument_group("time")
    time.add_argument(
        "--preset",
        choices=PRESETS,
        help="how long and how often (default: quick; full for figures to publish)",
    )
    time.add_argument(
        "--blocks", type=whole, metavar="N", help="repetitions of the whole plan (full: 5; quick and look: 3)"
    )
    time.add_argument(
        "--seconds", type=number, metavar="S", help="of each cell's window (full: 125; quick: 12; look: 2)"
    )
    time.add_argument(
        "--budget",
        type=duration,
        metavar="10m",
        help="fit the plan into this time, and say what was left out",
    )
    time.add_argument("--seed", type=whole, metavar="N", help="of the order of cells and rows (default: 0)")
    time.add_argument(
        "--deadline", type=positive_float, metavar="SECONDS", help="of each request (default: 30)"
    )
    time.add_argument(
        "--wait-for-server",
        type=patience,
        metavar="60s",
        help="how long to wait for a server that is lost on the way; 0: not at all (default: 60s)",
    )


def add_client(parser: argparse.ArgumentParser) -> None:
    client = parser.add_argument_group("client")
    switch = argparse.BooleanOptionalAction
    client.add_argument("--stream", action=switch, help="requests by one stream instead of one call each")
    client.add_argument("--processes", type=positive_int, metavar="N", help="of this client (default: 1)")
    client.add_argument(
        "--calibrate",
        action=switch,
        help="measure this client's own ceiling first where none is stored (default: yes)",
    )
    client.add_argument(
        "--metrics-port", type=port, metavar="PORT", help="say at this port which point is running"
    )
    client.add_argument("--parquet", action=switch, help="records as Parquet too")
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--tls", action=switch, help="with the system's certificate authorities")
    tls.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM certificates to trust instead")
    tls.add_argument("--tls-cert", type=Path, metavar="FILE", help="this client's certificate, PEM")
    tls.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM")


def add_peers(parser: argparse.ArgumentParser) -> None:
    peers = parser.add_argument_group("peers")
    peers.add_argument(
        "--peer",
        type=peer,
        action="append",
        metavar="NAME=HOST:PORT/MODEL[,MODEL...]",
        help="a server of the Open Inference Protocol to compare with; repeat for several",
    )
    peers.add_argument(
        "--peer-meter",
        type=meter,
        metavar="METER",
        help="read on this machine for the peers' joules: auto, nvml, rapl, or a sum such as nvml+rapl",
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the plan and measure nothing")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue what --out holds; its own plan is read if none is given",
    )
    parser.add_argument("--force", action="store_true", help="replace the results that --out holds")
