"""Checks of what measured: the energy sensor, the ledger, the client, and the rig as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from wattserve_common.stats import NO_CONCLUSION, Interval, binomial_tail, resolution
from wattserve_loadgen import words
from wattserve_loadgen.figures.verdicts import CEILING_LIMIT, rate_to_send
from wattserve_loadgen.model.cells import CellResult, MeterWindow
from wattserve_loadgen.model.ratios import COMPARED
from wattserve_loadgen.model.results import Ceiling, Check, Results, TargetSummary
from wattserve_loadgen.model.server_info import cross_checks, sensor_period_seconds

READINGS_SHARE = 0.8  # of those to expect in the time
LONGEST_PERIOD_ASKED = 0.1  # seconds between readings; a slower sensor is asked for no more than it has
MOST_GAP_PERIODS, MOST_GAP_SECONDS = 10.0, 0.5  # the longer of both
STEADY_WATTS = 10.0  # standard deviation of the power: steady for a large device
STEADY_SHARE = 0.10  # of the power: steady for a small one
STEADY_MEAN_SHARE = 0.05  # of the power: how well its mean is known where it flickers between readings
MANY_FOLD = 10.0  # as a part: beyond it a factor says more than a percentage
TWIN_RISK = 0.01  # that a rig which sees equal arms as equal fails the check

_SAMPLES, _GAPS, _POWER = "enough sensor samples", "no meter gaps", "steady power"
_NO_READINGS = "the meter's readings over the windows were not kept"
_KINDS = {
    "native unary": "unary",
    "native stream": "stream",
    "native generation": "generation",
    "open inference protocol": "oip",
}


def sensor_samples(results: Results) -> Check:
    """As many readings in the windows of each point as its sensor's period promises, or ten per second where
    that is fewer: 800 for 80 s. Says too how the sensor's counter held against its own power (rule 8).
    """
    points: dict[tuple[str, str], tuple[int, float, float]] = {}
    for cell, meter, target in _meters(results):
        period = max(LONGEST_PERIOD_ASKED, sensor_period_seconds(target.meter) or 0.0)
        readings, wanted, seconds = points.get((cell.arm, cell.load), (0, 0.0, 0.0))
        # The edges of a window fall between readings: it may hold one fewer.
        wanted += max(0.0, meter.seconds / period - 1)
        points[cell.arm, cell.load] = readings + meter.readings, wanted, seconds + meter.seconds
    if not points:
        return Check(_SAMPLES, None, _NO_READINGS)
    (arm, load), (readings, wanted, seconds) = min(
        points.items(), key=lambda item: item[1][0] / max(item[1][1], 1.0)
    )
    text = f"{readings:,} readings in {seconds:.1f} s, of {wanted:,.0f} to expect"
    enough = readings >= READINGS_SHARE * wanted
    held = "".join(f"; counter against power: {one}" for one in _cross_checks(results))
    return Check(_SAMPLES, enough, f"{text}, at worst ({arm} under {load}){held}")


def no_gaps(results: Results) -> Check:
    """Neither between readings nor in the ledger."""
    wrong, longest, seen = [], 0.0, False
    for cell, meter, target in _meters(results):
        gap = meter.longest_gap_seconds or 0.0
        limit = max(MOST_GAP_SECONDS, MOST_GAP_PERIODS * (sensor_period_seconds(target.meter) or 0.0))
        longest, seen = max(longest, gap), True
        if gap > limit:
            wrong.append(f"cell {cell.position}: {gap:.2f} s without a reading (limit {limit:.2f} s)")
        if meter.reason:
            wrong.append(f"cell {cell.position}: {meter.reason}")
    for cell in results.cells:
        if cell.energy.gap_count or cell.energy.gap_seconds > 0:
            wrong.append(f"cell {cell.position}: the ledger has a gap of {cell.energy.gap_seconds:.2f} s")
        seen = seen or cell.energy.measured_uj is not None
    if not seen:
        return Check(_GAPS, None, results.energy_reason or _NO_READINGS)
    text = f"the longest time without a reading was {longest:.3f} s" if longest else "none in the ledger"
    return Check(_GAPS, not wrong, words.first_of(wrong) or text)


def steady_power(results: Results) -> Check:
    """The power of a point hardly varies between readings, or so often was read that its mean is known all
    the same.
    """
    points: dict[tuple[str, str], list[MeterWindow]] = {}
    for cell, meter, _ in _meters(results):
        if meter.watts and meter.watts_deviation is not None and meter.readings > 1:
            points.setdefault((cell.arm, cell.load), []).append(meter)
    worst: tuple[bool, float, str] | None = None
    for (arm, load), meters in points.items():
        watts = sum(meter.watts or 0.0 for meter in meters) / len(meters)
        deviation = (sum((meter.watts_deviation or 0.0) ** 2 for meter in meters) / len(meters)) ** 0.5
        known = 2 * deviation / sum(meter.readings for meter in meters) ** 0.5 / watts
        low = deviation < STEADY_WATTS and deviation < STEADY_SHARE * watts
        text = (
            f"{watts:.3g} W with a deviation of {deviation:.2g} W ({deviation / watts * 100:.0f} %), its mean"
            f" known to ± {known * 100:.1f} %, at worst ({arm} under {load})"
        )
        judged = not (low or known < STEADY_MEAN_SHARE), known, text
        worst = judged if worst is None else max(worst, judged)
    if worst is None:
        return Check(_POWER, None, _NO_READINGS)
    return Check(_POWER, not worst[0], worst[2])


def closed_accounts(results: Results) -> Check:
    """Rule 9: the accounts of the server's ledger sum to what its meter counted, to the microjoule."""
    name = "closed accounts"
    known = [cell for cell in results.cells if cell.energy.accounts_residual_uj is not None]
    if not known:
        return Check(name, None, results.energy_reason or "no server of the sweep keeps accounts")
    residuals = [cell.energy.accounts_residual_uj or 0 for cell in known]
    worst = max(residuals, key=abs)
    differences = [abs(one) for cell in known if (one := cell.energy.meter_difference) is not None]
    text = f"{words.energy(worst)} are left over in {sum(map(bool, residuals))} of {len(known)} cells"
    if worst == 0:
        text = f"nothing is left over in {len(known)} cells"
    if differences:
        text += f"; receipts and meter differ by up to {words.percent(max(differences))} over a window"
    return Check(name, worst == 0, text)


def client_ceiling(results: Results) -> Check:
    """Rule 2: what this client can do is known for each way of asking, and no load came above half of it."""
    name = "client ceiling"
    wrong, shares = [], []
    for point in results.points:
        target = results.target_of(results.arm(point.arm))
        ceiling = ceiling_of(results, target)
        if ceiling is None:
            wrong.append(f"not known for {target.protocol}: run `loadgen calibrate`")
            continue
        achieved = point.shown.rate_per_second
        mean = None if achieved is None else achieved.mean
        rate = rate_to_send(results.load(point.load), point.offered_per_second, mean)
        share = (rate or 0.0) / ceiling.requests_per_second
        shares.append(share)
        if share > CEILING_LIMIT:
            text = f"{point.arm} under {point.load}: {words.rate(rate)} is {share * 100:.0f} % of the ceiling"
            wrong.append(f"{text} of {words.rate(ceiling.requests_per_second)}")
    if not wrong and not shares:
        return Check(name, None, "there are no points")
    text = f"at most {max(shares, default=0.0) * 100:.0f} % of what this client can send"
    return Check(name, not wrong, words.first_of(wrong) or text)


def twins(results: Results) -> Check:
    """Rule 7: the baseline against itself. Among many 95 % intervals a few miss 1 by chance; more than chance
    explains means that the rig sees differences where there are none.
    """
    name = "A/A pair"
    names = {arm.name for arm in results.plan.arms if arm.twin_of}
    if len(results.main_arms) == 1 and not names:
        return Check(name, None, "one variant alone is compared with nothing")
    if not names:
        return Check(name, False, "no variant ran under two names: what this rig can tell apart is not known")
    ratios = list(_twin_ratios(results, names))
    if not ratios:
        return Check(name, None, "the pair has no ratio with an interval")
    missed = [one for one in ratios if not _holds_one(one[2])]
    # P(X >= missed) when each interval misses in 5 % of the cases.
    chance = 1 - binomial_tail(len(ratios), len(missed) - 1, 0.05)
    widest = max((resolution(ratio) or 0.0, load, what) for load, what, ratio in ratios)
    equal = f"{len(ratios) - len(missed)} of {words.counted(len(ratios), 'comparison')}"
    text = f"in {equal} of the twins, 'equal' is inside the 95 % interval"
    if missed:
        outside = (
            f"{what} under {load}: {words.times(ratio)}, {words.bounds(ratio)}"
            for load, what, ratio in missed
        )
        text += f" (not in: {'; '.join(outside)})"
    reach, load, what = widest
    differ = words.percent(reach) if reach < MANY_FOLD else f"a factor of {1 + reach:.0f}"
    text += f"; two runs of the same variant may differ by up to {differ} ({what} under {load}):"
    text += " nothing smaller can be told apart"
    weak = reach > NO_CONCLUSION
    return Check(name, chance >= TWIN_RISK, f"{text}; measure longer" if weak else text, weak)


def ceiling_of(results: Results, target: TargetSummary) -> Ceiling | None:
    """This client's ceiling for the way in which it asks that server."""
    kind = _KINDS.get(target.protocol)
    return next((one for one in results.ceilings if one.kind == kind), None)


def _cross_checks(results: Results) -> list[str]:
    """Server by server, where their meters' probes looked."""
    several = len(results.targets) > 1
    probes = [(one.name, cross_checks(one.meter)) for one in results.targets]
    return [f"{name}: {text}" if several else text for name, text in probes if text]


def _meters(results: Results) -> Iterator[tuple[CellResult, MeterWindow, TargetSummary]]:
    for cell in results.cells:
        if cell.energy.meter is not None:
            yield cell, cell.energy.meter, results.target_of(results.arm(cell.arm))


def _twin_ratios(results: Results, names: set[str]) -> Iterator[tuple[str, str, Interval]]:
    for point in results.points:
        if point.arm in names:
            for figure in COMPARED.values():
                ratio = None if figure.follows else figure.of(point.shown.ratios)
                if ratio is not None and ratio.low is not None and ratio.high is not None:
                    yield point.load, figure.short_name, ratio


def _holds_one(ratio: Interval) -> bool:
    return ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
