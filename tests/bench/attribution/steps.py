"""`python -m tests.bench.attribution.steps`: worlds of prompts and answers mixed, as a model that generates
makes them, with a known truth for each.

Requests join and leave between the steps of one lane. A step draws what a law says, give or take what nobody
can foresee; the counter lags, ramps and is polled as in the other worlds. Of every generation the joules of
its prompt and of its answer are held against their shares under the true law.
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.bench.attribution.device import SETTLE_S, TAIL_S, History
from tests.bench.attribution.drive import Outcome, drive
from tests.bench.attribution.preparing import CALIBRATION_BUDGET_S
from tests.bench.attribution.realise import Realisation, to_ns
from tests.bench.attribution.sensor import publish
from tests.bench.attribution.trace import Trace
from tests.bench.attribution.world import Floats, Poisson, VariantLaw, Workload, World
from wattserve_server.energy.costlaw import Coefficients, of_step
from wattserve_server.energy.receipt import Line, Receipt, Role, Window, Work
from wattserve_server.energy.trials import plan_step_trials

MEMBERS, STEP_TOKENS, CONTEXT, CACHE_TOKENS = 16, 128, 512, 8192

# Joules and seconds of a step, by the features of its law: a small model on a large device, decoding bound by
# memory, so that a step draws less the fewer tokens it computes.
ENERGY = Coefficients(1.2, 0.010, 4e-6, per_logits_j=0.03, per_read_j=2e-5)
TIME = Coefficients(0.006, 3e-5, 8e-9, per_logits_j=4e-5, per_read_j=6e-8)

GOAL_MEDIAN, GOAL_BIAS = 5.0, 3.0  # %

REPEATED_EVERY, REPEATED = 4, (64, 64)  # with --repeated: a request of so many tokens of prompt and of answer


@dataclass
class Generation:
    prompt: int
    new: int
    number: int
    cached: int = 0
    chosen: int = 0

    def next(self, most: int) -> tuple[Work, Role]:
        if self.cached >= self.prompt:
            return Work(1, logits=1, read=self.cached + 1), Role.OUTPUT
        count = min(most, self.prompt - self.cached)
        pairs = count * self.cached + count * (count + 1) // 2
        is_last = self.cached + count == self.prompt
        return Work(count, pairs, int(is_last), begins=self.cached == 0), Role.PROMPT


@dataclass
class Lane:
    """What ran, and what it drew: windows by their ends, with the owners and true joules of their shares."""

    world: World
    rng: np.random.Generator
    now_s: float = SETTLE_S
    heat: float = 0.0
    steps: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    windows: list[Window] = field(default_factory=list)
    owners: list[tuple[int, Role]] = field(default_factory=list)
    true_uj: list[float] = field(default_factory=list)
    ended_s: float = 0.0

    def run(self, work: tuple[Work, ...], owners: list[tuple[int, Role]]) -> None:
        world, features = self.world, of_step(work)
        noise = float(np.exp(world.noise * self.rng.standard_normal() - world.noise**2 / 2))
        joules = ENERGY.cost_j(features) * (1 + world.thermal_gain * self.heat) * noise
        seconds = TIME.cost_j(features) * float(np.exp(world.duration_noise * self.rng.standard_normal()))
        start_s, end_s = self.now_s, self.now_s + seconds
        self.steps += [(start_s, joules / seconds), (end_s, 0.0)]
        lines = tuple(
            Line(Receipt("r", "", "fp32", "simulated", 0), each.computed, windows=1, role=role)
            for each, (_, role) in zip(work, owners, strict=False)
        )
        rested_ns = to_ns(max(start_s - self.ended_s, 0.0)) - to_ns(0.0)
        computed = tuple(each.computed for each in work)
        instants = to_ns(start_s), to_ns(end_s)
        self.windows.append(
            Window("fp32", *instants, computed, max(computed), lines, rested_ns=rested_ns, work=work)
        )
        shares = np.array([ENERGY.fixed_j / len(work) + ENERGY.step_j(each) for each in work])
        if owners:
            self.owners += owners
            self.true_uj += (1e6 * joules * shares / shares.sum()).tolist()
        self.heat += (joules / seconds / 300 - self.heat) * -float(np.expm1(-seconds / world.thermal_s))
        self.ended_s, self.now_s = end_s, end_s + world.turnaround_s

    def calibrate(self) -> None:
        counter = self.world.counter
        plan = plan_step_trials(
            CONTEXT, MEMBERS, STEP_TOKENS, CACHE_TOKENS, counter.period_s, CALIBRATION_BUDGET_S
        )
        for shape in plan.steps:
            until_s = self.now_s + plan.trial_s
            while self.now_s < until_s:
                self.run((shape.work,) * shape.sequences, [])
            self.now_s += plan.pause_s
        self.now_s += SETTLE_S

    def serve(self, company: int, think_s: float, for_s: float, repeated: bool) -> None:
        """So many callers, each with its next prompt some time after its last answer."""
        until_s, number, members = self.now_s + for_s, 0, list[Generation]()
        due = [self.now_s + think_s * self.rng.exponential() for _ in range(company)]
        while self.now_s < until_s or members:
            while due and min(due) <= self.now_s and self.now_s < until_s:
                due.remove(min(due))
                prompt = int(np.clip(64 * np.exp(0.7 * self.rng.standard_normal()), 16, 256))
                new = int(self.rng.integers(16, 128))
                if repeated and number % REPEATED_EVERY == 0:
                    prompt, new = REPEATED
                members.append(Generation(prompt, new, number))
                number += 1
            if not members:
                self.now_s = min(due) if self.now_s < until_s else until_s
                continue
            left, work, owners = STEP_TOKENS, [], []
            for member in sorted(members, key=lambda each: each.cached < each.prompt):
                if left > 0:
                    done, role = member.next(left)
                    left -= done.computed
                    work.append(done)
                    owners.append((member.number, role))
                    member.cached += done.computed
                    member.chosen += done.logits
            self.run(tuple(work), owners)
            for member in [each for each in members if each.chosen >= each.new]:
                members.remove(member)
                due.append(self.now_s + think_s * self.rng.exponential())


@dataclass(frozen=True)
class Found:
    """Of the prompts or of the answers of a world, in %."""

    generations: int
    median: float
    bias: float  # of their sum
    covered: float


def realise(
    company: int, think_s: float, seed: int, for_s: float, repeated: bool = False
) -> tuple[Realisation, Lane]:
    world = World((VariantLaw("fp32", 0.0, 1.0, 0.0, 300, 0.0, 1),))
    name = f"steps, company of {company}"
    streams = np.random.SeedSequence([seed, zlib.crc32(name.encode())]).spawn(4)
    lane_rng, trace_rng, counter_rng, poll_rng = (np.random.default_rng(each) for each in streams)
    lane = Lane(world, lane_rng)
    lane.calibrate()
    measured_from_s = lane.now_s
    lane.serve(company, think_s, for_s, repeated)
    history = History([], lane.steps, measured_from_s, lane.now_s + TAIL_S)
    trace = Trace(world, history, trace_rng)
    requests: Any = SimpleNamespace(batch=np.arange(len(lane.owners)))
    workload = Workload(Poisson(1.0), 60.0)
    case = Realisation(
        name, world, workload, history, [], lane.windows, requests, trace,
        publish(trace, world.counter, history.end_s, counter_rng), poll_rng,
    )  # fmt: skip
    return case, lane


def evaluate(lane: Lane, outcome: Outcome, role: Role) -> Found:
    mine = np.array([owner for owner, each in lane.owners if each is role])
    at = np.array([each is role for _, each in lane.owners])
    told, true = _sums(mine, outcome.got_uj[at]), _sums(mine, np.array(lane.true_uj)[at])
    deviation = _sums(mine, outcome.deviation_uj[at])
    has = true > 0
    told, true, deviation = told[has], true[has], deviation[has]
    return Found(
        len(true),
        100 * float(np.median(np.abs(told / true - 1))),
        100 * abs(float(told.sum() / true.sum()) - 1),
        100 * float(np.mean(np.abs(told - true) <= 1.96 * deviation)),
    )


def _sums(owners: np.ndarray, amounts: Floats) -> Floats:
    return np.asarray(np.bincount(owners, amounts))


def run(company: int, seed: int, for_s: float = 60.0) -> tuple[dict[Role, Found], Outcome]:
    case, lane = realise(company, 2.0 if company == 1 else 0.5, seed, for_s)
    outcome = drive(case)
    return {role: evaluate(lane, outcome, role) for role in (Role.PROMPT, Role.OUTPUT)}, outcome


def means_of_repeats(company: int, seed: int) -> str:
    """How far the mean receipt of one request that is asked again and again is from its mean true share."""
    case, lane = realise(company, 2.0 if company == 1 else 0.5, seed, 60.0, repeated=True)
    got_uj, true_uj = drive(case).got_uj, np.array(lane.true_uj)
    again = np.array([owner % REPEATED_EVERY == 0 for owner, _ in lane.owners])
    is_prompt = np.array([role is Role.PROMPT for _, role in lane.owners])
    off = [100 * float(got_uj[at].sum() / true_uj[at].sum() - 1) for at in
           (again, again & is_prompt, again & ~is_prompt)]  # fmt: skip
    count = len({owner for owner, _ in lane.owners if owner % REPEATED_EVERY == 0})
    return f"| {company} | {seed} | {count} | " + " | ".join(f"{each:+.1f}" for each in off) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attribution.steps", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeated", action="store_true", help="one request again and again, by its mean")
    args = parser.parse_args()
    if args.repeated:
        print("| company | seed | repeats | receipt, % | prompt | answer |\n|" + " --- |" * 6)
        for company in (1, 4, 16):
            for seed in range(1, args.seeds + 1):
                print(means_of_repeats(company, seed), flush=True)
        return
    print("| company | of | generations | median error | bias | covered |\n|" + " --- |" * 6)
    for company in (1, 4, 16):
        found = [run(company, seed) for seed in range(1, args.seeds + 1)]
        for role in (Role.PROMPT, Role.OUTPUT):
            each = [by_role[role] for by_role, _ in found]
            median = _middle([one.median for one in each])
            bias = _middle([one.bias for one in each])
            covered = np.mean([one.covered for one in each])
            count = sum(one.generations for one in each)
            print(f"| {company} | {role.value} | {count} | {median} | {bias} | {covered:.0f} |")
        violations = [outcome.checks.first for _, outcome in found if outcome.checks.violations]
        assert not violations, violations
    print(f"goals: median {GOAL_MEDIAN:g} %, bias {GOAL_BIAS:g} %; of the seeds the middle (the worst)")


def _middle(figures: list[float]) -> str:
    return f"{np.median(figures):.1f} ({max(figures):.1f})"


if __name__ == "__main__":
    main()
