"""`inspect layers` and `inspect outliers`: their sums against numpy, and what counts as a real token."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fixtures.inspection_data import loaded, rows_of, variant_of
from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import LoadedModel
from wattserve_tools.inspect.layers import (
    OUTPUT,
    ErrorSums,
    LayerError,
    compare,
    layers_of,
    real_rows,
    watching,
)
from wattserve_tools.inspect.outliers import FeatureMaxima, find_outliers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(save_classifier(tmp_path_factory.mktemp("model")))


ITEMS = [np.array(row) for row in rows_of(10)]


def test_the_sums_over_batches_are_numpys_over_all_values() -> None:
    generator = torch.Generator().manual_seed(3)
    pairs = [torch.randn(2, 7, 5, generator=generator) for _ in range(4)]
    sums = ErrorSums()
    for pair in pairs:
        sums.add(pair[0], pair[1])
    reference, other = (
        np.concatenate([pair[side].numpy().ravel() for pair in pairs]).astype(np.float64) for side in (0, 1)
    )
    error = other - reference
    assert sums.values == 140
    assert sums.mse == pytest.approx((error**2).mean())
    assert sums.max_abs_error == pytest.approx(np.abs(error).max())
    assert sums.relative_error == pytest.approx(np.linalg.norm(error) / np.linalg.norm(reference))
    cosine = reference @ other / np.linalg.norm(reference) / np.linalg.norm(other)
    assert sums.cosine == pytest.approx(cosine)


def test_a_layer_of_zeros_has_no_relative_error_and_no_cosine() -> None:
    sums = ErrorSums()
    sums.add(torch.zeros(3), torch.ones(3))
    assert (sums.mse, sums.relative_error, sums.cosine) == (1.0, None, None)


def test_values_that_are_not_finite_are_counted_and_are_worse_than_any_error() -> None:
    broken, bad = ErrorSums(), ErrorSums()
    broken.add(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, math.nan, math.inf]))
    bad.add(torch.tensor([1.0]), torch.tensor([100.0]))
    assert (broken.values, broken.non_finite, broken.mse) == (1, 2, 0.0)
    assert LayerError("a", "linear", broken).badness > LayerError("b", "linear", bad).badness


def test_a_figure_shows_exact_layers_as_0_and_those_with_values_that_are_not_finite_as_not_finite() -> None:
    def drawn(reference: list[float], other: list[float]) -> float:
        sums = ErrorSums()
        sums.add(torch.tensor(reference), torch.tensor(other))
        return LayerError("layer", "linear", sums).drawn

    assert drawn([1.0, 2.0], [1.0, 2.0]) == 0.0
    assert drawn([0.0, 0.0], [0.0, 0.0]) == 0.0
    assert drawn([1.0, 1.0], [1.5, 0.5]) == 0.5
    assert not math.isfinite(drawn([math.nan], [math.nan]))
    assert not math.isfinite(drawn([1.0, 1.0], [math.inf, 1.0]))
    assert not math.isfinite(drawn([0.0, 0.0], [1.0, 0.0]))


def test_padding_is_no_real_row_and_heads_are_real_as_a_whole() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    tokens = torch.arange(12.0).reshape(2, 3, 2)
    assert real_rows(tokens, mask).tolist() == [[0, 1], [2, 3], [6, 7]]
    assert real_rows(tokens.reshape(6, 2), mask).tolist() == [[0, 1], [2, 3], [6, 7]]
    assert real_rows(torch.ones(2, 4), mask).shape == (2, 4)
    assert real_rows(tokens, None).shape == (6, 2)


def test_a_convolutions_features_are_its_channels() -> None:
    image = torch.arange(8.0).reshape(1, 2, 2, 2)
    assert real_rows(image, None, "conv").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_linear_layers_and_blocks_are_watched_in_the_models_order(model: LoadedModel) -> None:
    found = layers_of(model.weights.module)
    assert list(found)[:3] == [
        "distilbert.transformer.layer.0",
        "distilbert.transformer.layer.0.attention.q_lin",
        "distilbert.transformer.layer.0.attention.k_lin",
    ]
    assert list(found.values()).count("block") == 2
    assert list(found.values()).count("linear") == 2 * 6 + 2


def test_fp32_does_not_depart_from_itself(model: LoadedModel) -> None:
    variant = variant_of(model, "fp32")
    errors, unseen = compare(variant, variant, ITEMS)
    assert not unseen
    assert [error.path for error in errors][-1] == OUTPUT
    assert {error.sums.max_abs_error for error in errors} == {0.0}


def test_every_layer_of_int8_departs_from_fp32_a_little(model: LoadedModel) -> None:
    errors, unseen = compare(variant_of(model, "fp32"), variant_of(model, "int8"), ITEMS)
    assert not unseen
    assert all(0 < (error.sums.relative_error or 0) < 0.1 for error in errors)


def test_the_errors_are_the_same_however_much_padding_there_is(model: LoadedModel) -> None:
    """Each row by itself has none; together they have."""
    pair = variant_of(model, "fp32"), variant_of(model, "int8")
    together, _ = compare(*pair, ITEMS[:4])
    alone = [compare(*pair, [item])[0] for item in ITEMS[:4]]
    for index, error in enumerate(together):
        values = sum(each[index].sums.values for each in alone)
        squares = sum(each[index].sums.squared_error for each in alone)
        assert error.sums.values == values
        assert error.sums.squared_error == pytest.approx(squares, rel=0.05)


def test_a_layer_that_a_variant_does_not_have_is_named_not_compared(model: LoadedModel) -> None:
    module = variant_of(model, "fp32").built.module
    with watching(module, ["classifier", "no.such.layer"], lambda path, tensor: None) as missing:
        assert missing == ["no.such.layer"]


def test_hooks_are_gone_after_watching(model: LoadedModel) -> None:
    variant = variant_of(model, "fp32")
    find_outliers(variant, ITEMS, 6.0)
    assert not any(part._forward_hooks for part in variant.built.module.modules())


def slow_outliers(vectors: np.ndarray, threshold: float) -> tuple[int, int, float]:
    """Outlier features, tokens that have one, and the largest magnitude."""
    features = {f for f in range(vectors.shape[1]) if any(abs(v[f]) > threshold for v in vectors)}
    tokens = [v for v in vectors if any(abs(x) > threshold for x in v)]
    return len(features), len(tokens), float(np.abs(vectors).max())


def test_outlier_features_are_those_that_exceed_the_threshold_in_any_token() -> None:
    vectors = np.random.default_rng(5).normal(scale=2.5, size=(30, 12)).astype(np.float32)
    maxima = FeatureMaxima(6.0)
    for part in np.array_split(vectors, 4):
        maxima.add(torch.from_numpy(part))
    found = maxima.as_json("layer")
    features, tokens, largest = slow_outliers(vectors, 6.0)
    assert 0 < features < 12
    assert (found["outlier_features"], found["tokens_with_outliers"]) == (features, tokens)
    assert found["outlier_feature_share"] == features / 12
    assert found["token_share"] == tokens / 30
    assert found["max_magnitude"] == pytest.approx(largest)
    assert len(found["largest_features"]) == features


def test_a_magnitude_of_exactly_the_threshold_is_no_outlier() -> None:
    maxima = FeatureMaxima(6.0)
    maxima.add(torch.tensor([[6.0, -6.5]]))
    assert maxima.as_json("layer")["largest_features"] == [
        {"feature": 1, "max_magnitude": 6.5, "token_share": 1.0}
    ]


def test_outliers_count_real_tokens_only(model: LoadedModel) -> None:
    layers = {layer["layer"]: layer for layer in find_outliers(variant_of(model, "fp32"), ITEMS, 6.0)}
    assert layers["distilbert.transformer.layer.0.ffn.lin1"]["tokens"] == sum(map(len, ITEMS))
    assert layers["classifier"]["tokens"] == len(ITEMS)


def test_the_model_is_not_touched_by_looking_at_it(model: LoadedModel, tmp_path: Path) -> None:
    variant = variant_of(model, "fp32")
    inputs = variant.prepare(ITEMS[:2])
    before = variant.run(inputs)
    compare(variant, variant_of(model, "int8"), ITEMS)
    assert np.array_equal(variant.run(inputs), before)
