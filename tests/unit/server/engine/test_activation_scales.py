"""Measuring activation scales for static quantisation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from wattserve_server.engine.variants.activations import MIN_SAMPLES, measure_scales
from wattserve_server.errors import ConfigError

Batch = dict[str, torch.Tensor]
WIDTH = 16


class Toy(nn.Module):
    """Per token, then a shared layer that runs twice, then on the first token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.each = nn.Linear(WIDTH, 32)
        self.twice = nn.Linear(32, 32)
        self.pooled = nn.Linear(32, 8)
        self.unused = nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.each(self.table(input_ids))
        x = self.twice(torch.relu(self.twice(x)))
        result: torch.Tensor = self.pooled(x[:, 0])
        return result


def toy() -> Toy:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return Toy().eval()


def batches(samples: int = MIN_SAMPLES, size: int = 37, pad: int = 0, seed: int = 5) -> list[Batch]:
    """Sequences of 1 to 12 tokens, filled up with the id `pad`."""
    rng = np.random.default_rng(seed)
    made = []
    for start in range(0, samples, size):
        lengths = rng.integers(1, 13, size=min(size, samples - start))
        mask = np.arange(lengths.max())[None, :] < lengths[:, None]
        ids = np.where(mask, rng.integers(1, 50, size=mask.shape), pad)
        made.append(
            {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
        )
    return made


def inputs_of(module: Toy, made: list[Batch]) -> dict[str, NDArray[np.float64]]:
    """All magnitudes that go into each layer, without padding."""
    seen: dict[str, list[NDArray[np.float64]]] = {"each": [], "twice": [], "pooled": []}
    with torch.inference_mode():
        for batch in made:
            real = batch["attention_mask"].bool()
            table = module.table(batch["input_ids"])
            each = module.each(table)
            again = torch.relu(module.twice(each))
            seen["each"].append(table[real].double().numpy())
            seen["twice"] += [each[real].double().numpy(), again[real].double().numpy()]
            seen["pooled"].append(module.twice(again)[:, 0].double().numpy())
    return {path: np.abs(np.concatenate([part.ravel() for part in parts])) for path, parts in seen.items()}


def test_a_scale_is_the_exact_percentile_of_all_inputs_over_127() -> None:
    module, made = toy(), batches()
    measured = measure_scales(module, made, "a test")
    assert measured.origin == "a test"
    for path, magnitudes in inputs_of(module, made).items():
        assert measured.scales[path] == pytest.approx(np.percentile(magnitudes, 99.9) / 127, rel=1e-13)


def test_a_layer_that_nothing_passes_through_has_no_scale() -> None:
    assert set(measure_scales(toy(), batches(), "a test").scales) == {"each", "twice", "pooled"}


def test_padding_does_not_count() -> None:
    module = toy()
    with torch.no_grad():
        module.table.weight[0] = 1000.0
    loud, quiet = batches(pad=0), batches(pad=1)
    assert measure_scales(module, loud, "").scales == measure_scales(module, quiet, "").scales


def test_the_order_of_the_batches_does_not_matter() -> None:
    module, made = toy(), batches()
    assert measure_scales(module, made, "").scales == measure_scales(module, made[::-1], "").scales


def test_batches_may_come_from_a_generator() -> None:
    def generate() -> Iterator[Batch]:
        yield from batches()

    module = toy()
    assert measure_scales(module, generate(), "").scales == measure_scales(module, batches(), "").scales


def test_one_sample_too_few_is_refused_and_counted() -> None:
    with pytest.raises(ConfigError, match="needs 512 samples, and there are 511 \\(from my rows\\)"):
        measure_scales(toy(), batches(MIN_SAMPLES - 1), "my rows")


def test_an_input_that_is_not_finite_is_refused_with_the_layer() -> None:
    for value in (float("nan"), float("inf")):
        module = toy()
        with torch.no_grad():
            module.table.weight[7, 3] = value
        with pytest.raises(ConfigError, match="an input of layer 'each' is not finite"):
            measure_scales(module, batches(), "")


def test_a_layer_whose_number_of_inputs_cannot_be_foreseen_is_refused() -> None:
    class Fickle(Toy):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            if len(input_ids) > 1:  # not the single sample by which the number is foreseen
                self.unused(torch.ones(5000, 8))
            return super().forward(input_ids, attention_mask)

    with pytest.raises(ConfigError, match="'unused' does not get the same number of inputs"):
        measure_scales(Fickle().eval(), batches(), "")


def test_a_model_of_images_counts_every_input() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.inner(pixel_values.flatten(2))
            return result

    made = [
        {"pixel_values": torch.randn(64, 3, 4, 2, generator=torch.Generator().manual_seed(seed))}
        for seed in range(8)
    ]
    everything = torch.cat([batch["pixel_values"] for batch in made]).abs().double().numpy()
    measured = measure_scales(Patches(), made, "").scales["inner"]
    assert measured == pytest.approx(np.percentile(everything, 99.9) / 127, rel=1e-13)


def test_measuring_leaves_the_module_without_hooks() -> None:
    module = toy()
    measure_scales(module, batches(), "")
    assert not any(part._forward_pre_hooks for part in module.modules())
