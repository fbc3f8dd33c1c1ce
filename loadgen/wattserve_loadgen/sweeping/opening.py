"""From what the user asked for to servers that have answered, and a plan that they can carry out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from wattserve_loadgen import words
from wattserve_loadgen.data.dataset import Dataset
from wattserve_loadgen.drive import calibration
from wattserve_loadgen.drive.ceiling import Ceiling as ClientCeiling
from wattserve_loadgen.drive.ceiling import stored_ceiling
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan import budget
from wattserve_loadgen.plan.load import POISSON, Arm, Load
from wattserve_loadgen.plan.options import Peer, SweepOptions, TlsFiles
from wattserve_loadgen.plan.schedule import Plan, make_plan
from wattserve_loadgen.results.schema import Ceiling
from wattserve_loadgen.sweeping import environment, preflight
from wattserve_loadgen.sweeping.own_witness import OwnMeterWitness
from wattserve_loadgen.sweeping.site import Site, check_one_server
from wattserve_loadgen.sweeping.sweep_clock import SweepClock
from wattserve_loadgen.sweeping.witness import LedgerWitness, NoWitness
from wattserve_loadgen.target.channel import Tls
from wattserve_loadgen.target.native import NativeTarget
from wattserve_loadgen.target.oip import OipTarget

ASIDE_SECONDS = 0.7  # of a cell beside its load, about: settling, reading, writing
SERVER = "server"
_CONNECT_SECONDS = 10.0
_ROWS_WEIGHED = 200


async def open_sites(
    options: SweepOptions, stack: AsyncExitStack, scratch: Path, clock: SweepClock
) -> dict[str, Site]:
    """Every server of the sweep by its name; TargetError when one does not answer. `scratch`: a folder for
    recordings of a meter that loadgen reads itself.
    """
    tls = read_tls(options.tls) if options.tls else None
    sites = {}
    if options.target:
        sites[SERVER] = await _open_server(options, tls, stack, clock)
    for peer in options.peers:
        if peer.name in sites:
            raise PlanError(f"two servers are called {peer.name!r}; give the peer another name")
        sites[peer.name] = await _open_peer(peer, tls, stack, scratch, clock, start=not options.dry_run)
    if not sites:
        raise PlanError("no server to measure: give --target HOST:PORT, or --peer")
    return sites


async def _open_server(
    options: SweepOptions, tls: Tls | None, stack: AsyncExitStack, clock: SweepClock
) -> Site:
    def target() -> NativeTarget:
        return NativeTarget(options.target, stream=options.stream, tls=tls)

    found = target()
    stack.push_async_callback(found.close)
    info = await found.server_info(_CONNECT_SECONDS)
    await check_one_server(found, target, info)
    return Site(SERVER, found, info, LedgerWitness(found, SERVER, info, clock))


async def _open_peer(
    peer: Peer, tls: Tls | None, stack: AsyncExitStack, scratch: Path, clock: SweepClock, *, start: bool
) -> Site:
    """`start`: its meter."""
    target = OipTarget(peer.address, ",".join(peer.models), tls=tls)
    stack.push_async_callback(target.close)
    info = await target.server_info(_CONNECT_SECONDS)
    if not peer.meter:
        reason = f"no meter is read for {peer.name}: --peer-meter names one of its machine"
        return Site(peer.name, target, info, NoWitness(reason))
    if not environment.is_this_machine(peer.address):
        raise PlanError(
            f"--peer-meter {peer.meter}: loadgen reads the meters of its own machine, and {peer.name} is at"
            f" {peer.address}; run loadgen there, or leave the meter out"
        )
    witness = OwnMeterWitness(peer, scratch, clock)
    stack.push_async_callback(witness.close)
    if start:
        await witness.start()
    return Site(peer.name, target, info, witness)


def read_tls(files: TlsFiles) -> Tls:
    """PlanError when a file cannot be read, or a key comes without its certificate."""
    if (files.cert is None) != (files.key is None):
        raise PlanError("--tls-cert and --tls-key belong together")

    def read(path: Path | None) -> bytes | None:
        if path is None:
            return None
        try:
            return path.read_bytes()
        except OSError as error:
            raise PlanError(f"{path}: cannot be read ({error.strerror})") from None

    return Tls(read(files.ca), read(files.cert), read(files.key))


def choose_arms(sites: dict[str, Site], asked: tuple[str, ...] | None, *, twin: bool) -> list[Arm]:
    """What is compared, the baseline first; `twin`: the baseline once more under a second name, last."""
    arms = []
    for name, site in sites.items():
        if name == SERVER:
            variants = preflight.choose_variants(site.info, asked)
            arms += [Arm(variant, variant, name) for variant in variants]
        else:
            arms += [Arm(f"{name}:{one.name}", one.name, name) for one in site.info.variants]
    if twin and arms:
        first = arms[0]
        arms.append(replace(first, name=f"{first.name} (A/A)", twin_of=first.name))
    return arms


def plan_of(options: SweepOptions, sites: dict[str, Site], dataset: Dataset) -> Plan:
    """The plan asked for, once every server has been checked against it; PlanError when one cannot."""
    plan = make_plan(
        options.preset,
        choose_arms(sites, options.variants, twin=options.twin),
        loads=() if options.find_max and options.loads is None else options.loads,
        blocks=options.blocks,
        seconds=options.seconds,
        seed=options.seed,
        least_requests=options.least_requests,
        objective=options.objective,
    )
    if options.find_max and not options.objective:
        raise PlanError("--find-max needs an objective: --slo 'p99<50ms'")
    if not plan.loads and not options.find_max:
        raise PlanError("no load to put on the server")
    for name, site in sites.items():
        preflight.check(site.info, variants_on(plan.arms, name), plan.loads, dataset)
    return plan


def fit_budget(plan: Plan, budget_seconds: float, *, find_max: bool) -> tuple[Plan, list[str], float]:
    """The part of a plan that fits, what was left out in words, and the seconds that a search may take: what
    the cells leave of the time, and at least half of it.
    """
    if not find_max:
        return *budget.fit(plan, budget_seconds, aside_seconds_per_cell=ASIDE_SECONDS), math.inf
    unknown = {arm.name: [Load(POISSON, rate=1.0)] for arm in plan.arms}  # one more load each, not known yet
    whole = replace(plan, own_loads=unknown)
    fitted, left_out = budget.fit(whole, budget_seconds / 2, aside_seconds_per_cell=ASIDE_SECONDS)
    search_seconds = budget_seconds - budget.plan_seconds(fitted, ASIDE_SECONDS)
    said = f"the search ends after {words.duration(search_seconds)}, with what it knows by then"
    return replace(fitted, own_loads={}), [*left_out, said], search_seconds


def variants_on(arms: Sequence[Arm], site: str) -> list[str]:
    """The variants that are measured on a server."""
    return list(dict.fromkeys(arm.variant for arm in arms if arm.target == site))


async def ceilings_of(
    options: SweepOptions, plan: Plan, sites: dict[str, Site], dataset: Dataset
) -> tuple[dict[str, Ceiling], list[str]]:
    """This client's ceiling against such servers by the arm's name, measured where none is stored; notes."""
    found: dict[str, Ceiling] = {}
    notes: list[str] = []
    rows = range(min(_ROWS_WEIGHED, len(dataset.rows)))
    for name, site in sites.items():
        arms = [arm for arm in plan.arms if arm.target == name]
        requests = site.target.make_requests(dataset, [[row] for row in rows], arms[0].variant)
        size = round(statistics.median(map(len, requests)))
        kind = kind_of(site)
        if options.calibrate:
            ceiling: ClientCeiling | None
            ceiling, said = await calibration.ensure_ceiling(kind, size, options.processes)
        else:
            stored, note = stored_ceiling(kind, size, options.processes)
            ceiling, said = stored, [note] if note else []
        notes += said
        if ceiling is not None:
            found |= {arm.name: _summary(ceiling) for arm in arms}
    return found, notes


def _summary(ceiling: ClientCeiling) -> Ceiling:
    return Ceiling(
        requests_per_second=ceiling.requests_per_second,
        client_cpu_us_per_request=ceiling.cpu_seconds_per_request * 1e6,
        request_bytes=ceiling.request_bytes,
        kind=ceiling.kind,
        processes=ceiling.processes,
        measured=datetime.fromtimestamp(ceiling.measured_unix_seconds, UTC).isoformat(),
    )


def kind_of(site: Site) -> str:
    """How it is called, in the words of calibrations."""
    connection = site.target.connection
    if isinstance(site.target, OipTarget):
        return "oip"
    return "stream" if connection.stream else "unary"
