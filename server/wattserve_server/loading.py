"""What a server loads when it starts: its default variant before it serves, the others beside requests."""

from __future__ import annotations

from contextlib import ExitStack

from wattserve_server.console import say
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.roster import Readiness
from wattserve_server.errors import ConfigError, OutOfMemoryError


class FirstLoads:
    """Of the variants of an engine's roster, that of its default variant first.

    are_named: whether an operator asked for these variants, or they are all that there are. default_is_named:
    the same of the default one.
    """

    def __init__(self, engine: Engine, *, are_named: bool, default_is_named: bool) -> None:
        self._engine = engine
        self._are_named = are_named
        self._default_is_named = default_is_named
        self._one_reading = ExitStack()

    async def load_default(self) -> None:
        """Raises ConfigError where there is nothing to serve, or what was asked for is not possible.

        Where the default variant was not asked for, or memory is short, the next in line takes its place.
        """
        engine = self._engine
        self._one_reading.enter_context(engine.loader.several())
        default = engine.default_variant
        names = sorted(engine.roster.names, key=lambda name: name != default)
        if self._are_named:
            await engine.loader.check(names)
        say(f"loading and warming up {', '.join(names)}")
        for name in names:
            try:
                await engine.loader.load(name)
            except ConfigError as error:
                if name == default and self._default_is_named:
                    raise ConfigError(f"--default-variant {name!r} could not be loaded: {error}") from error
                if not isinstance(error, OutOfMemoryError) and (self._are_named or len(names) == 1):
                    raise
                self._pass_over(name, error)
            else:
                engine.default_variant = name
                return
        raise ConfigError(f"none of {', '.join(names)} could be loaded")

    async def load_others(self) -> None:
        """One after the other, while the default one serves; those that fail stop nobody. Once all of them
        are ready or have failed, the operator is told."""
        engine = self._engine
        with self._one_reading:
            waiting = [each.choice.name for each in engine.roster if each.state is Readiness.UNLOADED]
            loads = {name: engine.loader.begin(name) for name in waiting}  # so that their requests wait too
            for name, load in loads.items():
                try:
                    await load
                except ConfigError as error:
                    self._pass_over(name, error)
        failed = [each.choice.name for each in engine.roster if each.state is Readiness.FAILED]
        ready = ", ".join(variant.name for variant in engine.roster.ready)
        if failed:
            say(f"NOT all variants are ready: {', '.join(failed)} FAILED; ready: {ready}")
        else:
            say(f"all variants are ready: {ready}")

    def _pass_over(self, name: str, error: ConfigError) -> None:
        if self._are_named or isinstance(error, OutOfMemoryError):
            say(f"variant {name!r} FAILED: {error}; the others stay")
        else:
            say(f"variant {name!r} is left out: {error}")
            self._engine.roster.remove(name)
