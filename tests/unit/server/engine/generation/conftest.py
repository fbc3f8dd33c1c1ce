"""The engine that the tests of generations share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fixtures.language_models import save_language_model
from tests.fixtures.running_generations import ODD, Attempts, Rig
from wattserve_server.engine.generation import stepper
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_language_model(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("text-generation"))


@pytest.fixture
async def rig(model: LoadedModel, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """By its marker's figures: tokens of cache, members at once, tokens of a step; and its devices."""
    made = Rig(model, *getattr(request, "param", (4096, 8, 32)))
    made.engine.start()
    await made.engine.loader.load("fp32")
    for run_log in made.run_logs:
        run_log.drain()
    yield made
    await asyncio.to_thread(made.engine.stop)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    run, tried = stepper.run, Attempts()

    def odd(variant: Any, prepared: Any, *more: Any) -> Any:
        if prepared.decoding == tried.holds_at > 0:
            assert tried.may_go_on.wait(60)
        tried.append(len(prepared.wanted))
        tried.rows.append(prepared.wanted)
        if (prepared.inputs["input_ids"] == ODD).any():
            raise ValueError("odd")
        return run(variant, prepared, *more)

    monkeypatch.setattr(stepper, "run", odd)
    return tried
