"""The status page: what a person wants to see of a running server, in one HTML page without scripts.

It says what GetServerInfo and GetEnergyReport say, with the watts of the last minutes and the last failures.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import pairwise

import jinja2

from wattserve_common.words import ACCOUNTS, ACTIVE, counted, origin
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.console import amount
from wattserve_server.energy.ledger import Ledger
from wattserve_server.engine.weights import format_bytes
from wattserve_server.service.inference import quality_word
from wattserve_server.service.prediction import Serving
from wattserve_server.service.report import device_report, meter_now, server_info
from wattserve_server.telemetry.observer import FailedRequest, Observer, VariantStatistics

CONTENT_TYPE = "text/html; charset=utf-8"

REFRESH_S = 5
LIMIT_S = 5.0  # for how long a page may take: longer only when the event loop hangs

PERIOD_S = 2.0  # how often a sample of a ledger is taken
SAMPLES = 91  # how many are kept: three minutes of them
RECENT_S = 10.0  # what "now" means: a counter that steps every 100 ms says little about less

CHART_WIDTH, CHART_HEIGHT = 720, 120  # of the picture of the watts, in its own units


@dataclass(frozen=True, slots=True)
class Sample:
    """The ledger at an instant."""

    at_ns: int
    measured_uj: int
    active_uj: int
    idle_uj: int
    other_uj: int  # warm-up, unattributed and gaps


@dataclass(frozen=True, slots=True)
class Watts:
    """The mean power between two samples.

    The accounts are settled some time after the meter counted, so they do not sum to `measured` at every
    instant.
    """

    duration_s: float
    measured: float
    active: float
    idle: float
    other: float


class LedgerHistory:
    """The last minutes of a device's ledger, for the watts of now: what each account took per second."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    def add(self, ledger: Ledger) -> None:
        """Keep what it says now, if it has been read since the last time."""
        if ledger.until_ns is None or (self._samples and self._samples[-1].at_ns == ledger.until_ns):
            return
        other_uj = ledger.warmup_uj + ledger.unattributed_uj + ledger.gap_uj
        self._samples.append(
            Sample(ledger.until_ns, ledger.measured_uj, ledger.active_uj, ledger.idle_uj, other_uj)
        )

    @property
    def now(self) -> Watts | None:
        """Over the last seconds; None until there are two samples."""
        if len(self._samples) < 2:
            return None
        last = self._samples[-1]
        since_ns = last.at_ns - int(RECENT_S * 1e9)
        first = next(sample for sample in self._samples if sample.at_ns >= since_ns)
        return _watts(self._samples[-2] if first is last else first, last)

    @property
    def course(self) -> list[Watts]:
        """From sample to sample, oldest first."""
        samples = list(self._samples)
        return [_watts(first, last) for first, last in pairwise(samples)]


def _watts(first: Sample, last: Sample) -> Watts:
    duration_s = (last.at_ns - first.at_ns) / 1e9
    amounts = zip(astuple(first)[1:], astuple(last)[1:], strict=True)
    return Watts(duration_s, *((after_uj - before_uj) / 1e6 / duration_s for before_uj, after_uj in amounts))


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device's meter and ledger."""

    meter: pb.MeterInfo
    ledger: pb.EnergyReport
    now: Watts | None  # None until there are two readings
    course: Sequence[Watts]  # oldest first


@dataclass(frozen=True, slots=True)
class PageFacts:
    """All that the page is drawn from."""

    state: str  # starting, ready or draining
    uptime_s: float
    failures: Sequence[FailedRequest]
    info: pb.ServerInfo | None = None  # None while starting
    devices: Sequence[DeviceFacts] = ()
    statistics: Mapping[str, VariantStatistics] | None = None  # by variant
    queued: int = 0


@dataclass(frozen=True, slots=True)
class VariantRow:
    info: pb.VariantInfo
    state: str
    requests: int
    failed: int
    joules_per_request: float | None  # None while no energy is settled
    joules_per_token: float | None


@dataclass(frozen=True, slots=True)
class AccountRow:
    name: str
    joules: float
    share: float
    about: str


class StatusPage:
    """Lives on the event loop, which the HTTP server's threads ask for the page."""

    def __init__(self, serving: Serving, observer: Observer) -> None:
        self._serving = serving
        self._observer = observer
        self._histories: dict[str, LedgerHistory] = defaultdict(LedgerHistory)
        self._begun_s = time.monotonic()
        self._loop = asyncio.get_running_loop()

    async def keep_history(self) -> None:
        """Keep the last minutes of every ledger, until cancelled."""
        while True:
            if self._serving.host is not None:
                for meter in self._serving.host.meters.values():
                    self._histories[meter.device].add(meter.sampler.ledger)
            await asyncio.sleep(PERIOD_S)

    def page(self, accept: str) -> tuple[str, bytes]:
        """The content type and the page. Any thread but the event loop's."""
        facts = asyncio.run_coroutine_threadsafe(self._page(), self._loop).result(LIMIT_S)
        return CONTENT_TYPE, render(facts)

    async def _page(self) -> PageFacts:
        uptime_s, failures = time.monotonic() - self._begun_s, self._observer.failures
        host = self._serving.host
        if host is None:
            return PageFacts("starting", uptime_s, failures)
        devices = []
        for meter in host.meters.values():
            history = self._histories[meter.device]
            devices.append(
                DeviceFacts(meter_now(meter), device_report(host, meter), history.now, history.course)
            )
        names = host.engine.roster.names
        return PageFacts(
            "draining" if self._serving.draining.is_set() else "ready",
            uptime_s,
            failures,
            server_info(host),
            devices,
            {name: self._observer.statistics([name]) for name in names},
            host.engine.queued,
        )


def render(page: PageFacts) -> bytes:
    html = _template().render(
        page=page,
        now=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        refresh_s=REFRESH_S,
        variants=_variant_rows(page),
        accounts=accounts,
        areas=areas,
        top_watts=top_watts,
        quality=quality_word,
        width=CHART_WIDTH,
        height=CHART_HEIGHT,
        minutes=PERIOD_S * (SAMPLES - 1) / 60,
    )
    return html.encode()


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wattserve_server.service"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"amount": amount, "duration": duration, "size": format_bytes, "clock": clock}
    environment.globals |= {"counted": counted, "origin": origin}
    return environment.get_template("status.html.j2")


def _variant_rows(page: PageFacts) -> list[VariantRow]:
    if page.info is None:
        return []
    active: dict[str, dict[str, pb.VariantEnergy]] = defaultdict(dict)  # of each variant by ledger
    for device in page.devices:
        for energy in device.ledger.active:
            active[energy.variant][device.ledger.device] = energy
    return [_variant_row(info, active[info.name], page.statistics or {}) for info in page.info.variants]


def _variant_row(
    info: pb.VariantInfo,
    energies: Mapping[str, pb.VariantEnergy],
    statistics: Mapping[str, VariantStatistics],
) -> VariantRow:
    counts = statistics.get(info.name, VariantStatistics())
    per_request = counts.settled_uj / 1e6 / counts.settled if counts.settled else None
    own = [energies[device] for device in (info.device, *info.other_devices) if device in energies]
    tokens = sum(energy.tokens for energy in own)  # a ledger that they share holds them again
    per_token = sum(each.active_uj for each in energies.values()) / 1e6 / tokens if tokens else None
    state = pb.VariantState.Name(info.state).removeprefix("VARIANT_STATE_").lower()
    return VariantRow(info, state, counts.success.count, counts.fail.count, per_request, per_token)


def accounts(ledger: pb.EnergyReport) -> list[AccountRow]:
    """Where the ledger's joules stand; empty when there is no figure."""
    if not ledger.HasField("measured_uj"):
        return []
    meanings = [ACTIVE, *[""] * len(ledger.active)]  # once
    rows = [
        (f"active {energy.variant}", energy.active_uj, about)
        for energy, about in zip(ledger.active, meanings, strict=False)
    ]
    rows += [(name, getattr(ledger, field), about) for field, (name, about) in ACCOUNTS.items()]
    total = ledger.measured_uj or 1
    return [AccountRow(name, amount_uj / 1e6, amount_uj / total, about) for name, amount_uj, about in rows]


def top_watts(course: Sequence[Watts]) -> float:
    """What the picture's upper edge stands for: a round number, 1, 2 or 5 of some power of ten."""
    highest = max((watts.active + watts.idle + watts.other for watts in course), default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(top for top in (power, 2 * power, 5 * power, 10 * power) if top >= highest)


def areas(course: Sequence[Watts]) -> list[tuple[str, str]]:
    """For each account its name and the outline of its area, stacked: points of an SVG polygon."""
    span, top = PERIOD_S * (SAMPLES - 1), top_watts(course)
    edges = [float(CHART_WIDTH)]
    for watts in reversed(course):
        edges.insert(0, max(0.0, edges[0] - CHART_WIDTH * watts.duration_s / span))
    outlines, floor = [], [0.0] * len(course)
    for name in ("idle", "active", "other"):
        ceiling = [below + max(0.0, getattr(watts, name)) for below, watts in zip(floor, course, strict=True)]
        over = _steps(edges, ceiling, top)
        under = _steps(edges, floor, top)[::-1]
        outlines.append((name, " ".join(f"{x:.1f},{y:.1f}" for x, y in [*over, *under])))
        floor = ceiling
    return outlines


def _steps(edges: Sequence[float], levels: Sequence[float], top: float) -> list[tuple[float, float]]:
    points = []
    for index, level in enumerate(levels):
        y = CHART_HEIGHT * (1 - level / top)
        points += [(edges[index], y), (edges[index + 1], y)]
    return points


def duration(seconds: float) -> str:
    """The two largest units: "2 h 5 min"."""
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])


def clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
