"""`python -m tests.bench.known_answers`: loadgen against laws of latency that are known, with many samples.

Percentiles of a law, and of a law with stalls in an open and in a closed loop, against theory, in real time
on this machine; how often the upper 99 % bounds hold, simulated; what `--find-max` finds of what it should,
by the length of its trials, simulated, and once against a real server.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from tests.fixtures.fake_server.child import ChildServer
from tests.fixtures.fake_server.law import Law
from tests.fixtures.law_runs import Run, drive
from tests.fixtures.law_search import (
    RealQueue,
    SimulatedQueue,
    departures,
    find_max,
    fixed_service_rate,
    random_service_rate,
)
from wattserve_common.stats import SAMPLE_FLOORS, effective_samples
from wattserve_loadgen.figures.percentiles import percentiles_of
from wattserve_loadgen.plan.load import POISSON, Load, closed

MS = 1e6
RATE = 300.0
SLOTS = 4
LINE = Law(floor_seconds=0.02, mean_seconds=0.03)
STALLING = Law(
    0.02, 0.03, stall_after_seconds=2.0, stall_seconds=0.5, stall_every_seconds=8.0
)  # a sixteenth of the time
SERVICE_SECONDS = 0.004
QUEUES = {
    "M/D/1": (fixed_service_rate(SERVICE_SECONDS, 95.0, 0.02), "p95<20ms"),
    "M/M/1": (random_service_rate(SERVICE_SECONDS, 95.0, 0.03), "p95<30ms"),
}
Floats = npt.NDArray[np.float64]


def name(percent: float) -> str:
    return f"p{percent:g}".replace(".", "")


def milliseconds(nanoseconds: float | None) -> str:
    return f"{'-':>8}" if nanoseconds is None else f"{nanoseconds / MS:8.2f}"


def table_of_percentiles(title: str, run: Run, law: bool) -> None:
    """`ideal`: of the same requests if client, wire and timers took no time."""
    found = run.result.latency
    print(f"\n{title}: {found.samples} requests, worth {found.effective_samples or 0:.0f}; ms")
    print(f"{'':6} {'law':>8} {'ideal':>8} {'response':>8} {'bound':>8} {'service':>8}")
    ideal = run.ideal_ns if run.cell.load.scheduled else run.done_ns - run.sent_ns
    exact = percentiles_of(ideal, None, floors_by_effective=False)
    for percent in SAMPLE_FLOORS:
        field = f"{name(percent)}_ns"
        cells = [
            (run.law.floor_seconds - run.law.mean_seconds * math.log1p(-percent / 100)) * 1e9
            if law
            else None,
            getattr(exact, field),
            getattr(found, field),
            getattr(found, f"{name(percent)}_bound_ns"),
            None if run.result.service is None else getattr(run.result.service, field),
        ]
        print(f"{name(percent):6} " + " ".join(map(milliseconds, cells)))
    service = None if run.result.service is None else run.result.service.mean_ns
    print("mean   " + " ".join(map(milliseconds, (None, exact.mean_ns, found.mean_ns, None, service))))
    late = np.percentile(run.lateness_ns, [50, 99])
    print(f"the server's timers were {late[0] / MS:.2f} ms late at p50 and {late[1] / MS:.2f} ms at p99")


def table_of_bounds(repetitions: int) -> None:
    print(f"\nshare of {repetitions} simulated samples of 20,000 whose upper 99 % bound holds (published)")
    print(f"{'':16}" + "".join(f"{name(percent):>16}" for percent in SAMPLE_FLOORS))
    source = np.random.default_rng(1)

    def queue(load: float) -> Callable[[], Floats]:
        def sample() -> Floats:
            arrivals = np.cumsum(source.exponential(1 / load, 40_000))
            return (departures(arrivals, source.exponential(1.0, 40_000)) - arrivals)[20_000:] * (1 - load)

        return sample

    samples: dict[str, Callable[[], Floats]] = {"exponential": lambda: source.exponential(1.0, 20_000)}
    samples |= {f"M/M/1 at {load}": queue(load) for load in (0.3, 0.5, 0.7, 0.8, 0.9)}
    for title, draw in samples.items():
        held, published = dict.fromkeys(SAMPLE_FLOORS, 0), dict.fromkeys(SAMPLE_FLOORS, 0)
        for _ in range(repetitions):
            values = (draw() * MS).astype(np.int64)
            found = percentiles_of(values, effective_samples(values))
            for percent in SAMPLE_FLOORS:
                bound = getattr(found, f"{name(percent)}_bound_ns")
                published[percent] += bound is not None
                held[percent] += bound is not None and bound >= -math.log1p(-percent / 100) * MS
        shares = (
            f"{held[one] / published[one]:9.3f} ({published[one] / repetitions:4.0%})"
            if published[one]
            else "-"
            for one in SAMPLE_FLOORS
        )
        print(f"{title:16}" + "".join(f"{share:>16}" for share in shares))


def table_of_searches(searches: int) -> None:
    print(f"\n{searches} simulated searches of a server of {1 / SERVICE_SECONDS:g}/s")
    print("queue    trial s   exact/s   found/exact p10 p50 p90   above   bracketed   trials")
    for title, (exact, objective) in QUEUES.items():
        for seconds in (5, 12, 60, 125, 600):
            found = []
            for seed in range(searches):
                source = np.random.default_rng(seed)

                def draw(count: int, source: np.random.Generator = source, title: str = title) -> Floats:
                    fixed = title == "M/D/1"
                    return (
                        np.full(count, SERVICE_SECONDS)
                        if fixed
                        else source.exponential(SERVICE_SECONDS, count)
                    )

                found.append(
                    find_max(
                        partial(SimulatedQueue, draw=draw),
                        objective,
                        seconds,
                        seed,
                    )
                )
            low = np.array([one.rate_per_second or 0.0 for one in found])
            upper = [one.undecided_per_second or one.broken_per_second or math.inf for one in found]
            high = np.array(upper)
            shares = " ".join(f"{share:.3f}" for share in np.percentile(low / exact, [10, 50, 90]))
            inside = int(np.count_nonzero((low <= exact) & (high >= exact)))
            trials = np.mean([len(one.trials) for one in found])
            above = int(np.count_nonzero(low > exact))
            print(f"{title:8} {seconds:7} {exact:9.1f}   {shares:>25} {above:7} {inside:11} {trials:8.1f}")


def real_search(seconds: float) -> None:
    exact, objective = QUEUES["M/D/1"]
    with ChildServer(Law(floor_seconds=SERVICE_SECONDS, queue=True)) as server:
        found = find_max(lambda plan: RealQueue(plan, server.address), objective, seconds, 0)
    print(f"\na real M/D/1 server, trials of {seconds:g} s: exact {exact:.1f}/s; {found.ended}")
    for one in found.trials:
        print(f"  {one.rate_per_second:8.1f}/s {one.seconds:6.1f} s {one.judgement:10} {one.text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load on a real server")
    parser.add_argument("--trial-seconds", type=float, default=10.0, help="of the real search")
    parser.add_argument("--repetitions", type=int, default=300, help="of each simulation")
    asked = parser.parse_args()

    def run(law: Law, load: Load) -> Run:
        with ChildServer(law) as server:
            return drive(server.address, law, load, asked.seconds, preset="look")

    table_of_percentiles(f"open loop, {RATE:g}/s", run(LINE, Load(POISSON, rate=RATE)), law=True)
    title = f"{STALLING.stall_seconds:g} s of every {STALLING.stall_every_seconds:g} s stalled"
    table_of_percentiles(f"open loop, {title}", run(STALLING, Load(POISSON, rate=RATE)), law=False)
    table_of_percentiles(f"closed loop of {SLOTS}, {title}", run(STALLING, closed(SLOTS)), law=False)
    table_of_bounds(asked.repetitions)
    table_of_searches(max(1, asked.repetitions // 10))
    real_search(asked.trial_seconds)


if __name__ == "__main__":
    main()
