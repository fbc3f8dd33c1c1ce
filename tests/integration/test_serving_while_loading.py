"""A server that answers with its default variant while another is still being loaded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fixtures.models import save_classifier
from tests.fixtures.present import present
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client, DeadlineExceeded, NotPossible, VariantState

PROGRAM = ("-m", "tests.fixtures.serve_with_held_variant")
IDS = [2, 4, 6, 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@dataclass
class Held:
    """A server whose bf16 is held back."""

    server: RunningServer
    client: Client
    file: Path

    def release(self, reason: str = "") -> None:
        """Have it built, or fail for this reason."""
        written = self.file.with_suffix(".new")
        written.write_text(reason)
        written.rename(self.file)

    @property
    def states(self) -> dict[str, str]:
        return {variant.name: variant.state for variant in self.client.server_info().variants}


@pytest.fixture
def held(model: Path, tmp_path: Path) -> Iterator[Held]:
    file = tmp_path / "release"
    extra = {"HELD_VARIANT_FILE": str(file)}
    arguments = ("--model", str(model), "--variants", "fp32,bf16", "--no-verify")
    with (
        running_server(*arguments, program=PROGRAM, extra=extra, waits_for_all=False) as server,
        Client(server.address) as client,
    ):
        yield Held(server, client, file)


def test_it_answers_before_all_are_loaded_and_all_are_calibrated_in_the_end(held: Held) -> None:
    assert held.states == {"fp32": "ready", "bf16": "loading"}
    answer = held.client.predict(IDS, wait_for_settled_energy=True)
    assert (answer.receipt.variant, answer.receipt.state) == ("fp32", "settled")
    assert "calibrated fp32 in" in held.server.error_text
    with pytest.raises(DeadlineExceeded):
        held.client.predict(IDS, variant="bf16", timeout_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(held.client.predict, IDS, variant="bf16", wait_for_settled_energy=True)
        held.release()
        late = waiting.result(timeout=120).receipt
    assert held.states == {"fp32": "ready", "bf16": "ready"}
    assert present(late.energy_uj) >= 0
    assert held.server.terminate() == 0
    assert "calibrated bf16 in" in held.server.error_text
    assert held.server.error_text.count("all variants are ready: fp32, bf16") == 1


def test_one_that_fails_later_is_told_and_stops_nobody(held: Held) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(held.client.predict, IDS, variant="bf16")
        held.release("it is out of fashion")
        with pytest.raises(NotPossible, match="'bf16' could not be loaded: it is out of fashion"):
            waiting.result(timeout=120)
    (failed,) = [each for each in held.client.server_info().variants if each.name == "bf16"]
    assert (failed.state, failed.state_reason) == (VariantState.FAILED, "it is out of fashion")
    assert held.client.predict(IDS).receipt.variant == "fp32"
    assert held.server.terminate() == 0
    assert "variant 'bf16' FAILED: it is out of fashion; the others stay" in held.server.error_text
    assert "NOT all variants are ready: bf16 FAILED; ready: fp32" in held.server.error_text


def test_a_shutdown_does_not_wait_for_what_is_being_loaded(held: Held) -> None:
    answer = held.client.predict(IDS)
    assert answer.receipt.variant == "fp32"
    assert held.server.terminate() == 0
    assert "drained: " in held.server.error_text
