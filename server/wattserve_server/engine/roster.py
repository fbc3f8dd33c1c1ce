"""The roster: every variant that a server was started with, by name; and the loader, which brings them into
memory and lets go of them, within a limit of memory.

Both live on the event loop. Building runs on a thread of its own, one variant at a time, so that no more than
one is in the making beside the source checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

import torch

from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine import warmup
from wattserve_server.engine.calibrating import Calibration
from wattserve_server.engine.heap import give_back
from wattserve_server.engine.lane import Lane
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.out_of_memory import free_unused, memory_shortage
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.engine.variants.verification import Verification
from wattserve_server.engine.weights import bytes_after_loading, bytes_together, format_bytes
from wattserve_server.errors import ConfigError, LaneLostError, NotFound, NotPossibleHere, OutOfMemoryError

log = logging.getLogger(__name__)

HOST = torch.device("cpu")  # which builds every variant
SKIPPED = Verification(False, "not verified: --no-verify")


class Readiness(Enum):
    UNLOADED = "unloaded"
    LOADING = "loading"  # or it waits for another to be loaded
    CALIBRATING = "calibrating"  # loaded, and the meter learns what it costs
    READY = "ready"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Resident:
    """A variant in memory."""

    variant: Variant  # of several that are alike the first one
    siblings: Mapping[str, Variant] = field(default_factory=dict)  # by device, where there are several
    open_requests: int = 0  # accepted and not ended
    free: asyncio.Event = field(default_factory=asyncio.Event)  # set while there are none

    def __post_init__(self) -> None:
        self.free.set()

    @property
    def variants(self) -> list[Variant]:
        return list(self.siblings.values()) or [self.variant]

    def on(self, device: str) -> Variant:
        """The one that a device runs."""
        return self.siblings.get(device, self.variant)

    def enter(self) -> None:
        if not self.open_requests:
            self.free.clear()
        self.open_requests += 1

    def leave(self) -> None:
        self.open_requests -= 1
        if not self.open_requests:
            self.free.set()


@dataclass(slots=True, eq=False)
class HostedVariant:
    """A variant that the server was started with, in memory or not."""

    choice: Choice
    state: Readiness = Readiness.UNLOADED
    reason: str = ""  # why it FAILED, or which of its devices has
    resident: Resident | None = None  # only while READY
    loading: asyncio.Task[Resident] | None = None
    leaving: asyncio.Task[None] | None = None  # while one that was unloaded still has requests to answer

    @property
    def variant(self) -> Variant | None:
        resident = self.resident  # once: a scrape asks from another thread
        return None if resident is None else resident.variant


class Roster:
    def __init__(self, choices: Sequence[Choice]) -> None:
        self._variants = {choice.name: HostedVariant(choice) for choice in choices}
        self.leaving: set[Resident] = set()  # unloaded, and in memory until their requests are answered

    def __iter__(self) -> Iterator[HostedVariant]:
        return iter(tuple(self._variants.values()))  # a scrape looks from another thread

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._variants)

    @property
    def ready(self) -> list[Variant]:
        return [hosted.variant for hosted in self if hosted.variant is not None]

    def in_memory(self, device: torch.device) -> list[Variant]:
        """Those on a device that take memory: the ready ones and those that are leaving."""
        residents = [*(hosted.resident for hosted in self), *self.leaving]
        variants = [variant for resident in residents if resident for variant in resident.variants]
        return [variant for variant in variants if variant.device == device]

    def remove(self, name: str) -> None:
        """Forget a variant that is not in memory."""
        del self._variants[name]

    def named(self, name: str) -> HostedVariant:
        """Raises NotFound for a name that is not on the roster, loaded or not."""
        try:
            return self._variants[name]
        except KeyError:
            raise NotFound(
                f"unknown variant {name[:80]!r}; this server has {', '.join(self._variants)}", "variant"
            ) from None


@dataclass(frozen=True, slots=True)
class LoadingRules:
    is_lazy: bool = False  # requests load what they need
    is_verified: bool = True  # the profiler looks at each variant before it serves
    memory_limit: int = 0  # for the weights of all variants of one device, in bytes; 0: none
    threads: int = 0  # that compute a batch on a CPU; 0: as many as pay


class Loader:
    """lanes: of every device that the roster names. trials: of those whose variants are calibrated."""

    def __init__(
        self,
        model: LoadedModel,
        materials: Materials,
        roster: Roster,
        lanes: Mapping[torch.device, Lane],
        rules: LoadingRules,
        trials: Mapping[torch.device, TrialPlan],
    ) -> None:
        self.rules = rules
        self._trials = trials
        self._model = model
        self._materials = materials
        self._roster = roster
        self._lanes = lanes
        self._one_at_a_time = asyncio.Lock()
        self._wanted = 0
        self._is_building = False

    async def load(self, name: str) -> Resident:
        """Make a variant ready, or wait until somebody else has. Raises NotFound; ConfigError (or its kind
        OutOfMemoryError) when it cannot be made, after which its state is FAILED and says why. A caller who
        leaves does not stop it."""
        hosted = self._roster.named(name)
        if hosted.resident is not None:
            return hosted.resident
        return await asyncio.shield(self.begin(name))

    def begin(self, name: str) -> asyncio.Task[Resident]:
        """Load a variant that is not in memory, or go on loading it; from now on its requests wait for that.
        Raises NotFound; its outcome is as that of `load`."""
        hosted = self._roster.named(name)
        if hosted.loading is None:
            hosted.state, hosted.reason = Readiness.LOADING, ""
            hosted.loading = asyncio.create_task(self._load(hosted))
            hosted.loading.add_done_callback(_retrieve)
        return hosted.loading

    @contextmanager
    def several(self) -> Iterator[None]:
        """Variants are loaded in this block: what they are made from is read once."""
        self._wanted += 1
        try:
            yield
        finally:
            self._unwant()

    async def check(self, names: Sequence[str]) -> None:
        """Raises ConfigError for what is known beforehand to be impossible: to make one of these variants of
        this model, or to hold all of them within the limit of memory."""
        choices = [self._roster.named(name).choice for name in names]
        each = [choice.on(device) for choice in choices for device in choice.devices]
        await asyncio.to_thread(self._check, each)

    @property
    def is_building(self) -> bool:
        """Whether a variant is being made, on a thread that nothing can stop."""
        return self._is_building

    def give_up(self) -> None:
        """Load nothing more, whoever waits for it."""
        for hosted in self._roster:
            if hosted.loading is not None:
                hosted.loading.cancel()

    async def unload(self, name: str) -> None:
        """Refuse new requests of a variant, wait for the accepted ones, let go of its memory. Raises
        NotFound. A caller who leaves does not stop it."""
        hosted = self._roster.named(name)
        if hosted.loading is not None:
            await asyncio.wait((hosted.loading,))
        if hosted.resident is not None:
            resident, hosted.resident = hosted.resident, None
            self._roster.leaving.add(resident)
            hosted.leaving = asyncio.create_task(self._see_off(resident))
        if hosted.loading is None:  # nobody has begun to load it again meanwhile
            hosted.state, hosted.reason = Readiness.UNLOADED, ""
        if hosted.leaving is not None:
            await asyncio.shield(hosted.leaving)

    async def ready(self, hosted: HostedVariant) -> Resident:
        """What runs a request: loaded now, if the rules are lazy. Raises NotPossibleHere for a variant that
        is not in memory."""
        name = hosted.choice.name
        while hosted.resident is None:
            if hosted.state is Readiness.FAILED:
                raise _not_loaded(name, hosted.reason)
            if not self.rules.is_lazy and hosted.state is Readiness.UNLOADED:
                raise NotPossibleHere(
                    f"variant {name!r} is not loaded: LoadVariant, or RepositoryModelLoad, loads it"
                )
            await self.load_on_request(name)
        return hosted.resident

    async def load_on_request(self, name: str, field: str = "") -> None:
        """As `load`, for a caller. Raises NotFound; NotPossibleHere, naming the field of the request."""
        try:
            await self.load(name)
        except ConfigError as error:
            raise _not_loaded(name, str(error), field) from error

    async def _load(self, hosted: HostedVariant) -> Resident:
        self._wanted += 1
        variants: list[Variant] = []
        try:
            async with self._one_at_a_time:
                for device in hosted.choice.devices:
                    if self._lanes[device].why_lost:
                        continue
                    with suppress(LaneLostError):  # the others go on
                        variants.append(await self._made_ready(hosted, device))
        except Exception as error:
            failure = _explained(hosted.choice, error)
            hosted.state, hosted.reason = Readiness.FAILED, str(failure)
            log.info("could not load %s: %s", hosted.choice.name, failure)
            for device in hosted.choice.devices:
                await asyncio.to_thread(free_unused, device)
            raise failure from error
        finally:
            hosted.loading = None
            self._unwant()
        first, *others = variants
        siblings = {str(variant.device): variant for variant in variants} if others else {}
        hosted.resident, hosted.state = Resident(first, siblings), Readiness.READY
        return hosted.resident

    async def _made_ready(self, hosted: HostedVariant, device: torch.device) -> Variant:
        """The variant on one of its devices. Raises whatever is wrong with it there."""
        begun, lane, choice = time.monotonic(), self._lanes[device], hosted.choice.on(device)
        with self._metered_building(choice):
            variant = await asyncio.to_thread(self._build, choice)
        await warmup.tune(lane, variant, self.rules.threads)
        if self.rules.is_verified:
            await warmup.verify(lane, variant)
        else:
            variant.verification = SKIPPED
        await warmup.warm_up(lane, variant)
        if (plan := self._trials.get(device)) is not None:
            hosted.state = Readiness.CALIBRATING
            await Calibration(lane, variant, plan).run()
        seconds, size = time.monotonic() - begun, format_bytes(variant.parameter_bytes)
        log.info(
            "loaded %s on %s: %s, %.1f s; %s", variant.name, device, size, seconds, variant.verification.words
        )
        return variant

    def _unwant(self) -> None:
        self._wanted -= 1
        if not self._wanted:  # else the next in line would read the checkpoint again
            self._materials.weights.release()
            give_back()

    async def _see_off(self, resident: Resident) -> None:
        await resident.free.wait()
        self._roster.leaving.discard(resident)
        log.info("unloaded %s", resident.variant.name)
        for variant in resident.variants:
            await asyncio.to_thread(free_unused, variant.device)

    @contextmanager
    def _metered_building(self, choice: Choice) -> Iterator[None]:
        """Building computes on the host, for whatever device, and copies to the variant's."""
        with ExitStack() as stack:
            for device, lane in self._lanes.items():
                if device in (choice.device, HOST):
                    stack.enter_context(lane.run_log.beside(choice.name))
            yield

    def _build(self, choice: Choice) -> Variant:
        """On a thread. Raises ConfigError for what would not fit, and whatever building raises."""
        self._is_building = True
        try:
            self._check_memory(choice)
            return build_variant(self._model, choice, self._materials)
        finally:
            self._is_building = False

    def _check(self, choices: Sequence[Choice]) -> None:
        """On a thread."""
        try:
            needed = bytes_together(self._materials, choices)
        except ConfigError:
            raise
        except Exception as error:  # not every kind can be made without numbers; whether it can, is seen then
            log.info("what the variants will take is not known beforehand: %s", error)
            return
        limit = self.rules.memory_limit
        for device, amount in needed.items():
            if limit and amount > limit:
                names = ", ".join(choice.name for choice in choices if choice.device == device)
                raise ConfigError(
                    f"the weights of {names} would take {format_bytes(amount)} on {device}, and "
                    f"--max-model-memory is {format_bytes(limit)}; leave some out, or raise the limit"
                )

    def _check_memory(self, choice: Choice) -> None:
        limit = self.rules.memory_limit
        if limit:
            loaded = self._roster.in_memory(choice.device)
            needed = bytes_after_loading(self._materials, choice, loaded)
            if needed > limit:
                names = ", ".join(variant.name for variant in loaded) or "nothing"
                raise ConfigError(
                    f"with {choice.name} the weights on {choice.device} would take {format_bytes(needed)}, "
                    f"and --max-model-memory is {format_bytes(limit)}; in memory: {names}; unload one, or "
                    "raise the limit"
                )


def _not_loaded(name: str, reason: str, field: str = "") -> NotPossibleHere:
    return NotPossibleHere(f"variant {name!r} could not be loaded: {reason}", field)


def _explained(choice: Choice, error: Exception) -> ConfigError:
    """What an operator is told of a failure to build, check or warm up."""
    if shortage := memory_shortage(error):
        return OutOfMemoryError(f"{choice.device} is out of memory: {shortage}")
    if isinstance(error, ConfigError):
        return error
    log.error("variant %s could not be made", choice.name, exc_info=error)
    return ConfigError(f"it cannot run on {choice.device}: {type(error).__name__}: {error}")


def _retrieve(loading: asyncio.Task[Resident]) -> None:
    """Its outcome is kept in the roster; when every caller has left, nobody else asks for its exception."""
    if not loading.cancelled():
        loading.exception()
