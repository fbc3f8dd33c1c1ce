"""The loader: brings variants into memory and lets go of them, within a limit of memory.

Lives on the event loop; building runs on a thread of its own, one variant at a time, so that no more than
one is in the making beside the source checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from wattserve_server.engine.lane import Lane
from wattserve_server.engine.memory import bytes_after_loading, format_bytes
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.out_of_memory import free_unused, memory_shortage
from wattserve_server.engine.roster import Entry, Resident, Roster, State
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.engine.variants.verification import Verification
from wattserve_server.errors import ConfigError, NotPossibleHere, OutOfMemoryError

log = logging.getLogger(__name__)

SKIPPED = Verification(False, "not verified: --no-verify")


@dataclass(frozen=True, slots=True)
class LoadingRules:
    """is_lazy: requests load what they need. is_verified: the profiler looks at each variant before it
    serves. memory_limit: for the weights of all variants of one device, in bytes; 0: none. threads: that
    compute a batch on a CPU; 0: as many as pay."""

    is_lazy: bool = False
    is_verified: bool = True
    memory_limit: int = 0
    threads: int = 0


class Loader:
    """roster: see Roster. lanes: of every device that the roster names."""

    def __init__(
        self,
        model: LoadedModel,
        materials: Materials,
        roster: Roster,
        lanes: Mapping[torch.device, Lane],
        rules: LoadingRules,
    ) -> None:
        self.rules = rules
        self._model = model
        self._materials = materials
        self._roster = roster
        self._lanes = lanes
        self._one_at_a_time = asyncio.Lock()
        self._wanted = 0

    async def load(self, name: str) -> Resident:
        """Make a variant ready, or wait until somebody else has. Raises NotFound; ConfigError (or its kind
        OutOfMemoryError) when it cannot be made, after which its state is FAILED and says why. A caller who
        leaves does not stop it."""
        entry = self._roster.named(name)
        if entry.resident is not None:
            return entry.resident
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._load(entry))
            entry.loading.add_done_callback(_retrieve)
        return await asyncio.shield(entry.loading)

    async def unload(self, name: str) -> None:
        """Refuse new requests of a variant, wait for the accepted ones, let go of its memory. Raises
        NotFound. A caller who leaves does not stop it."""
        entry = self._roster.named(name)
        if entry.loading is not None:
            await asyncio.wait((entry.loading,))
        if entry.resident is not None:
            resident, entry.resident = entry.resident, None
            self._roster.leaving.add(resident)
            entry.leaving = asyncio.create_task(self._see_off(resident))
        if entry.loading is None:  # nobody has begun to load it again meanwhile
            entry.state, entry.reason = State.UNLOADED, ""
        if entry.leaving is not None:
            await asyncio.shield(entry.leaving)

    async def ready(self, name: str) -> Resident:
        """What runs a request: loaded now, if the rules are lazy. Raises NotFound; NotPossibleHere for a
        variant that is not in memory."""
        entry = self._roster.named(name)
        while entry.resident is None:
            if entry.state is State.FAILED:
                raise _not_loaded(name, entry.reason)
            if not self.rules.is_lazy and entry.state is State.UNLOADED:
                raise NotPossibleHere(
                    f"variant {name!r} is not loaded: LoadVariant, or RepositoryModelLoad, loads it"
                )
            await self.load_on_request(name)
        return entry.resident

    async def load_on_request(self, name: str, field: str = "") -> None:
        """As `load`, for a caller. Raises NotFound; NotPossibleHere, naming the field of the request."""
        try:
            await self.load(name)
        except ConfigError as error:
            raise _not_loaded(name, str(error), field) from error

    async def _load(self, entry: Entry) -> Resident:
        entry.state, entry.reason = State.LOADING, ""
        self._wanted += 1
        begun = time.monotonic()
        device = entry.choice.device
        lane = self._lanes[device]
        try:
            async with self._one_at_a_time:
                variant = await asyncio.to_thread(self._build, entry.choice)
                await lane.tune(variant, self.rules.threads)
                if self.rules.is_verified:
                    await lane.verify(variant)
                else:
                    variant.verification = SKIPPED
                await lane.warm_up(variant)
        except Exception as error:
            failure = _explained(entry.choice, error)
            entry.state, entry.reason = State.FAILED, str(failure)
            log.info("could not load %s: %s", entry.choice.name, failure)
            await asyncio.to_thread(free_unused, device)
            raise failure from error
        finally:
            entry.loading = None
            self._wanted -= 1
            if not self._wanted:  # else the next in line would read the checkpoint again
                self._materials.weights.release()
        entry.resident, entry.state = Resident(variant), State.READY
        seconds, size = time.monotonic() - begun, format_bytes(variant.parameter_bytes)
        log.info(
            "loaded %s on %s: %s, %.1f s; %s", variant.name, device, size, seconds, variant.verification.words
        )
        return entry.resident

    async def _see_off(self, resident: Resident) -> None:
        await resident.free.wait()
        self._roster.leaving.discard(resident)
        log.info("unloaded %s", resident.variant.name)
        await asyncio.to_thread(free_unused, resident.variant.device)

    def _build(self, choice: Choice) -> Variant:
        """On a thread. Raises ConfigError for what would not fit, and whatever building raises."""
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
        return build_variant(self._model, choice, self._materials)


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
    """Its outcome is kept in the entry; when every caller has left, nobody else asks for its exception."""
    if not loading.cancelled():
        loading.exception()
