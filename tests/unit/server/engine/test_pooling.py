"""Embeddings are pooled as a sentence encoder's folder says; a model that reads its padding is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    FNetConfig,
    FNetForSequenceClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from tests.fixtures.models import save_encoder
from wattserve_server.engine.exported import export
from wattserve_server.engine.model import LoadedModel, kinds_of, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.errors import ConfigError

TASK = task_named("feature-extraction")
ROWS = [np.array([2, 4, 6, 3]), np.array([2, 5, 3]), np.array([2, 4, 5, 6, 7, 8, 3])]


def sentence_encoder(folder: Path, pooling: dict[str, Any], *others: str) -> str:
    """A folder as sentence-transformers writes it; others: kinds of modules behind the pooling."""
    save_encoder(folder)
    kinds = ("Transformer", "Pooling", *others)
    paths = ("", "1_Pooling", *(f"{place}_{kind}" for place, kind in enumerate(others, 2)))
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in zip(kinds, paths, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return str(folder)


def variant_of(source: str) -> tuple[LoadedModel, Variant]:
    kinds, _ = kinds_of(source, TASK)
    model = load_model(source, TASK)
    return model, build_variant(model, Choice("fp32", kinds["fp32"], torch.device("cpu")))


def tokens_of(source: str) -> list[np.ndarray[Any, Any]]:
    """What plain transformers makes of each row alone: [tokens, width]."""
    encoder = AutoModel.from_pretrained(source).eval()
    with torch.no_grad():
        return [encoder(torch.from_numpy(row)[None]).last_hidden_state[0].numpy() for row in ROWS]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, lambda rows: rows.mean(axis=0)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda rows: rows[0]),
        ({"pooling_mode_lasttoken": True}, lambda rows: rows[-1]),
        ({"pooling_mode": "cls"}, lambda rows: rows[0]),
    ],
    ids=["mean", "cls", "last", "newer name"],
)
def test_an_embedding_is_pooled_as_its_folder_says(tmp_path: Path, pooling: Any, expected: Any) -> None:
    source = sentence_encoder(tmp_path / "encoder", pooling)
    _, variant = variant_of(source)
    wanted = np.stack([expected(rows) for rows in tokens_of(source)])
    np.testing.assert_allclose(variant.run(variant.prepare(ROWS)), wanted, atol=1e-5)


def test_an_embedding_is_normalised_where_its_folder_says_so_and_exported_as_well(tmp_path: Path) -> None:
    source = sentence_encoder(tmp_path / "encoder", {"pooling_mode_cls_token": True}, "Normalize")
    _, variant = variant_of(source)
    answers = variant.run(variant.prepare(ROWS))
    firsts = np.stack([rows[0] for rows in tokens_of(source)])
    np.testing.assert_allclose(answers, firsts / np.linalg.norm(firsts, axis=1, keepdims=True), atol=1e-6)
    export(variant, None, tmp_path / "exported")
    _, exported = variant_of(str(tmp_path / "exported"))
    np.testing.assert_array_equal(exported.run(exported.prepare(ROWS)), answers)


@pytest.mark.parametrize(
    ("pooling", "others", "words"),
    [
        ({"pooling_mode_max_tokens": True}, (), "the pooling 'max'; offered are mean, cls, lasttoken"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, (), r"'cls\+mean'"),
        ({"pooling_mode_cls_token": True}, ("Dense",), "names Dense, which is not offered"),
    ],
)
def test_an_embedding_that_is_not_offered_is_refused(
    tmp_path: Path, pooling: Any, others: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_model(sentence_encoder(tmp_path / "encoder", pooling, *others), TASK)


def test_a_list_of_modules_that_is_none_is_refused(tmp_path: Path) -> None:
    (save_encoder(tmp_path) / "modules.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match=r"its modules\.json cannot be read"):
        load_model(str(tmp_path), TASK)


@pytest.mark.parametrize("kind", ["xlnet", "fnet"])
def test_a_model_that_reads_its_padding_is_refused(tmp_path: Path, kind: str) -> None:
    """XLNet's head takes the last place, padding or not; FNet mixes all places and knows no mask."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model: Any = XLNetForSequenceClassification(
            XLNetConfig(vocab_size=32, d_model=16, n_layer=1, n_head=2, d_inner=32, pad_token_id=0)
        )
        if kind == "fnet":
            model = FNetForSequenceClassification(
                FNetConfig(
                    vocab_size=32, hidden_size=16, num_hidden_layers=1, intermediate_size=32, pad_token_id=0
                )
            )
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.5)
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="reads the padding behind a text"):
        load_model(str(tmp_path), task_named("sequence-classification"))
