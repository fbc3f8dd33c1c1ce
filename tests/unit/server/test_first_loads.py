"""What a server loads when it starts, in what order, and what an operator is told of what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from wattserve_server.engine.roster import HostedVariant, Readiness, Resident, Roster
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.errors import ConfigError, OutOfMemoryError
from wattserve_server.loading import FirstLoads

CPU = torch.device("cpu")
NAMES = ("fp32", "bf16", "int8")


class World:
    """An engine whose variants load at once, but for those that `fail`."""

    def __init__(self, fail: Mapping[str, ConfigError] | None = None, default: str = "fp32") -> None:
        self.roster = Roster([Choice(name, KINDS[name], CPU) for name in NAMES])
        self.default_variant = default
        self.loader = self
        self.loaded: list[str] = []  # in that order
        self.readings = 0  # of the checkpoint, as far as the loader knows
        self._fail = fail or {}

    async def check(self, names: Sequence[str]) -> None:
        for name in names:
            if str(self._fail.get(name, "")).startswith("foreseen"):
                raise self._fail[name]

    @contextmanager
    def several(self) -> Iterator[None]:
        self.readings += 1
        yield

    async def load(self, name: str) -> Resident:
        return await self.begin(name)

    def begin(self, name: str) -> asyncio.Task[Resident]:
        hosted = self.roster.named(name)
        hosted.state = Readiness.LOADING
        return asyncio.create_task(self._load(hosted))

    async def _load(self, hosted: HostedVariant) -> Resident:
        name = hosted.choice.name
        self.loaded.append(name)
        if name in self._fail:
            hosted.state, hosted.reason = Readiness.FAILED, str(self._fail[name])
            raise self._fail[name]
        variant: Any = type("Loaded", (), {"name": name})()
        hosted.resident, hosted.state = Resident(variant), Readiness.READY
        return hosted.resident

    def first_loads(self, *, are_named: bool = False, default_is_named: bool = False) -> FirstLoads:
        engine: Any = self
        return FirstLoads(engine, are_named=are_named, default_is_named=default_is_named)

    @property
    def states(self) -> dict[str, str]:
        return {each.choice.name: each.state.value for each in self.roster}


Output = pytest.CaptureFixture[str]


async def test_the_default_variant_comes_first_and_the_others_in_their_order(capsys: Output) -> None:
    world = World(default="bf16")
    loads = world.first_loads()
    await loads.load_default()
    assert world.states == {"fp32": "unloaded", "bf16": "ready", "int8": "unloaded"}
    loading = asyncio.create_task(loads.load_others())
    await asyncio.sleep(0)
    assert world.states == {"fp32": "loading", "bf16": "ready", "int8": "loading"}
    await loading
    assert world.loaded == ["bf16", "fp32", "int8"]
    assert world.readings == 1
    assert capsys.readouterr().err.splitlines() == [
        "wattserve: loading and warming up bf16, fp32, int8",
        "wattserve: all variants are ready: fp32, bf16, int8",
    ]


@pytest.mark.parametrize(
    ("error", "named", "words"),
    [
        (ConfigError("it is broken"), {"are_named": True}, "it is broken"),
        (ConfigError("foreseen: it is broken"), {"are_named": True}, "foreseen: it is broken"),
        (
            ConfigError("it is broken"),
            {"default_is_named": True},
            "--default-variant 'fp32' could not be loaded: it is broken",
        ),
        (
            OutOfMemoryError("cpu is full"),
            {"are_named": True, "default_is_named": True},
            "--default-variant 'fp32' could not be loaded: cpu is full",
        ),
    ],
)
async def test_a_default_variant_that_was_asked_for_and_fails_stops_the_start(
    error: ConfigError, named: dict[str, bool], words: str
) -> None:
    world = World({"fp32": error})
    with pytest.raises(ConfigError) as caught:
        await world.first_loads(**named).load_default()
    assert str(caught.value) == words


async def test_what_is_foreseen_of_any_that_was_asked_for_stops_the_start() -> None:
    world = World({"int8": ConfigError("foreseen: it would not fit")})
    with pytest.raises(ConfigError, match="foreseen: it would not fit"):
        await world.first_loads(are_named=True).load_default()
    assert world.loaded == []


@pytest.mark.parametrize(
    ("error", "are_named", "said"),
    [
        (ConfigError("it is broken"), False, "variant 'fp32' is left out: it is broken"),
        (OutOfMemoryError("cpu is full"), False, "variant 'fp32' FAILED: cpu is full; the others stay"),
        (OutOfMemoryError("cpu is full"), True, "variant 'fp32' FAILED: cpu is full; the others stay"),
    ],
)
async def test_a_default_variant_that_nobody_asked_for_or_that_finds_no_memory_is_replaced(
    capsys: Output, error: ConfigError, are_named: bool, said: str
) -> None:
    world = World({"fp32": error})
    loads = world.first_loads(are_named=are_named)
    await loads.load_default()
    assert world.default_variant == "bf16"
    await loads.load_others()
    assert world.loaded == [*NAMES]
    assert said in capsys.readouterr().err


async def test_where_none_can_be_loaded_nothing_is_served() -> None:
    world = World(dict.fromkeys(NAMES, OutOfMemoryError("cpu is full")))
    with pytest.raises(ConfigError, match="none of fp32, bf16, int8 could be loaded"):
        await world.first_loads(are_named=True).load_default()


async def test_one_that_was_asked_for_and_fails_later_stays_with_its_reason(capsys: Output) -> None:
    world = World({"bf16": ConfigError("it is broken")})
    loads = world.first_loads(are_named=True)
    await loads.load_default()
    await loads.load_others()
    assert world.states == {"fp32": "ready", "bf16": "failed", "int8": "ready"}
    assert capsys.readouterr().err.splitlines()[1:] == [
        "wattserve: variant 'bf16' FAILED: it is broken; the others stay",
        "wattserve: NOT all variants are ready: bf16 FAILED; ready: fp32, int8",
    ]


async def test_one_that_nobody_asked_for_and_fails_later_is_left_out(capsys: Output) -> None:
    world = World({"bf16": ConfigError("it is broken")})
    loads = world.first_loads()
    await loads.load_default()
    await loads.load_others()
    assert world.states == {"fp32": "ready", "int8": "ready"}
    assert capsys.readouterr().err.splitlines()[1:] == [
        "wattserve: variant 'bf16' is left out: it is broken",
        "wattserve: all variants are ready: fp32, int8",
    ]
