"""Loading, unloading and limits, as an operator and a client meet them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from tests.fixtures.models import save_classifier
from tests.fixtures.present import present
from tests.fixtures.server import environment, running_server
from wattserve_client import Client, NotFound, NotPossible

IDS = [2, 4, 6, 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def lazy(model: Path) -> Iterator[Client]:
    names = "fp32,int8-simulated"
    with (
        running_server("--model", str(model), "--variants", names, "--lazy-variants") as running,
        Client(running.address) as client,
    ):
        yield client


def states(client: Client) -> dict[str, str]:
    return {variant.name: variant.state for variant in client.server_info().variants}


def test_a_lazy_variant_is_loaded_by_its_first_requests_and_charged_for_nothing_but_itself(
    lazy: Client,
) -> None:
    assert states(lazy)["int8-simulated"] == "unloaded"
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda _: lazy.predict(IDS, variant="int8-simulated", wait_for_settled_energy=True), range(4)
            )
        )
    assert states(lazy)["int8-simulated"] == "ready"
    assert all(answer.receipt.energy_uj is not None and answer.receipt.proxy for answer in answers)
    report = lazy.energy_report()
    active = {each.variant: each.active_uj for each in report.active}
    assert report.warmup_uj
    assert active["int8-simulated"] == sum(present(answer.receipt.energy_uj) for answer in answers)


def test_what_was_loaded_was_verified_and_says_what_it_shares(lazy: Client) -> None:
    for name in ("fp32", "int8-simulated"):
        lazy.load_variant(name)
    described = {variant.name: variant for variant in lazy.server_info().variants}
    for variant in described.values():
        assert variant.verified
        assert "multiply-accumulates" in variant.verification
        assert 0 < variant.shared_bytes < variant.parameter_bytes
    assert described["int8-simulated"].proxy
    assert not described["fp32"].proxy


def test_unloading_and_loading_again_by_the_client(lazy: Client) -> None:
    lazy.load_variant("fp32")
    assert lazy.unload_variant("fp32").state == "unloaded"
    assert states(lazy)["fp32"] == "unloaded"
    assert lazy.predict(IDS, variant="fp32").receipt.variant == "fp32"  # a lazy server loads it again
    with pytest.raises(NotFound, match="unknown variant 'fp64'; this server has fp32, int8-simulated"):
        lazy.load_variant("fp64")


def test_a_limit_of_memory_holds_at_start_and_at_run_time(model: Path) -> None:
    arguments = ["--model", str(model), "--variants", "fp32,int8-simulated", "--max-model-memory"]
    with pytest.raises(RuntimeError, match="--max-model-memory is 10 kB"), running_server(*arguments, "10kB"):
        pass
    with (
        running_server(*arguments, "150kB", "--lazy-variants") as running,
        Client(running.address) as client,
    ):
        assert client.server_info().model_memory_limit_bytes == 150_000
        client.predict(IDS, variant="fp32")
        with pytest.raises(NotPossible, match=r"'int8-simulated' could not be loaded: .*unload one"):
            client.predict(IDS, variant="int8-simulated")
        client.unload_variant("fp32")
        assert client.load_variant("int8-simulated").state == "ready"


def test_without_verification_every_receipt_says_unverified(model: Path) -> None:
    with (
        running_server("--model", str(model), "--variants", "fp32", "--no-verify") as running,
        Client(running.address) as client,
    ):
        assert client.predict(IDS).receipt.unverified
        (variant,) = client.server_info().variants
        assert (variant.verified, variant.verification) == (False, "not verified: --no-verify")


PEAK = """
    import re, sys, torch
    from pathlib import Path
    from wattserve_server.engine.model import load_model
    from wattserve_server.engine.tasks import task_named
    from wattserve_server.engine.variants.catalogue import choose
    from wattserve_server.engine.variants.variant import build_variant
    from wattserve_server.engine.weights import tensor_bytes

    def status(field):
        return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

    task, cpu = task_named("sequence-classification"), torch.device("cpu")
    small = load_model(sys.argv[1], task)
    made = [build_variant(small, choice) for choice in choose(None, cpu)]  # what is imported on first use
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    model = load_model(sys.argv[2], task)
    source = tensor_bytes(model.weights.module)
    variants = [build_variant(model, choice) for choice in choose("fp32,int8-simulated", cpu)]
    print((status("VmHWM") - before) / (tensor_bytes(*(v.built.module for v in variants)) + source))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_loading_peaks_below_1_3_times_the_variants_and_the_checkpoint(model: Path, tmp_path: Path) -> None:
    config = DistilBertConfig(
        dim=512, hidden_dim=2048, n_layers=4, n_heads=8, vocab_size=10_000, num_labels=2
    )
    DistilBertForSequenceClassification(config).save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK), str(model), str(tmp_path)],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 0.3 < float(done.stdout.split()[-1]) <= 1.3
