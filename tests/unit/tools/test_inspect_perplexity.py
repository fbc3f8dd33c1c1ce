"""`inspect perplexity`: its figures against transformers' own, and what it says of odd texts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.language_models import VOCABULARY, language_model, save_language_model
from wattserve_server.engine.builtin.demo_llm import demo_llm_folder
from wattserve_server.errors import ConfigError
from wattserve_tools.cli import main
from wattserve_tools.inspect.texts import Document, read_documents, spans, tokenised


def document(count: int) -> Document:
    return Document(np.arange(count, dtype=np.int64), count)


@pytest.mark.parametrize(
    ("tokens", "window", "stride"), [(50, 16, 4), (50, 16, 15), (7, 16, 8), (2, 2, 1), (16, 16, 8)]
)
def test_every_token_but_the_first_is_foreseen_once_and_from_enough(
    tokens: int, window: int, stride: int
) -> None:
    found = spans([document(tokens), document(3)], window, stride)
    for number, count in enumerate((tokens, 3)):
        own = [span for span in found if span.document == number]
        told = [int(token) for span in own for token in span.token_ids[-span.foreseen :]]
        assert told == list(range(1, count))
    for span in found:
        assert len(span.token_ids) <= window
        before = len(span.token_ids) - span.foreseen
        assert before >= min(window - stride, int(span.token_ids[-span.foreseen]))


def test_a_text_is_documents_that_empty_lines_separate(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("\none\ntwo\n\n \nthree\n", encoding="utf-8")
    assert read_documents(path, None) == ["one\ntwo", "three"]
    assert read_documents(path, 1) == ["one\ntwo"]
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"text": "a\\n\\nb"}\n\n{"text": "c"}\n', encoding="utf-8")
    assert read_documents(lines, None) == ["a\n\nb", "c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", b"\n \n", "there is no text in it"),
        ("t.txt", b"\xff\xfe\x00", "it is not UTF-8"),
        ("t.jsonl", b"{", "line 1: not JSON"),
        ("t.jsonl", b'{"words": "x"}', "line 1: no field `text` that holds a text"),
        ("nowhere.txt", None, "cannot be read (No such file"),
    ],
)
def test_what_is_no_text_is_told_in_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_documents(tmp_path / name, None)
    assert message in str(raised.value)


class Tokenizer:
    """A token for each character; with a token for a beginning, or without."""

    def __init__(self, bos_token_id: int | None) -> None:
        self.bos_token_id = bos_token_id

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def test_bytes_are_of_what_is_foreseen() -> None:
    (with_beginning,) = tokenised(["äbc"], Tokenizer(1), 300)
    assert (with_beginning.token_ids.tolist(), with_beginning.bytes) == ([1, 228, 98, 99], 4)
    (without,) = tokenised(["äbc"], Tokenizer(None), 300)
    assert (without.token_ids.tolist(), without.bytes) == ([228, 98, 99], 2)
    with pytest.raises(ConfigError, match="no document has two tokens"):
        tokenised(["a"], Tokenizer(None), 300)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        tokenised(["ab"], None, 300)


def test_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    from wattserve_server.config import ServerConfig
    from wattserve_tools.inspect.perplexity import log_probabilities
    from wattserve_tools.inspect.subject import choose_subject, open_model

    config = ServerConfig(model=str(save_language_model(tmp_path / "llama")), variants="fp32", device="cpu")
    subject = choose_subject(config, open_model(config), allow_emulated=False)
    (examined,) = subject.build()
    ids = torch.randint(0, VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(2))
    (span,) = spans([Document(ids[0].numpy(), 40)], 40, 20)
    with torch.inference_mode():
        wanted = torch.log_softmax(language_model("llama")(ids).logits[0, :-1].double(), dim=-1)
    assert log_probabilities(examined.variant, span) == pytest.approx(wanted.numpy(), abs=1e-4)


def inspected(tmp_path: Path, *flags: str) -> dict[str, Any]:
    out = tmp_path / "told.json"
    text = str(demo_llm_folder() / "heldout.txt")
    places = ["inspect", "perplexity", "--model", "demo-llm", "--text", text, "--json", str(out)]
    assert main([*places, "--threads", "1", *flags]) == 0
    told: dict[str, Any] = json.loads(out.read_text())
    return told


@pytest.mark.long
def test_a_precision_is_held_against_fp32_token_by_token(tmp_path: Path) -> None:
    told = inspected(tmp_path, "--variants", "bf16,int4-weight-only", "--documents", "2", "--meter", "none")
    fp32, bf16, int4 = told["variants"]
    assert [row["variant"] for row in told["variants"]] == ["fp32", "bf16", "int4-weight-only"]
    assert fp32["kl_nats_per_token"] is None
    assert 0 < bf16["kl_nats_per_token"] < int4["kl_nats_per_token"] < 0.1
    assert 0.8 < int4["top1_agreement"] < bf16["top1_agreement"] <= 1
    difference = int4["nats_per_token"] - fp32["nats_per_token"]
    assert int4["nats_per_token_difference"] == pytest.approx(difference)
    assert fp32["perplexity"] == pytest.approx(math.exp(fp32["nats_per_token"]))
    nats = fp32["nats_per_token"] * told["text"]["tokens_foreseen"]
    assert fp32["bits_per_byte"] == pytest.approx(nats / math.log(2) / told["text"]["bytes"])
    assert fp32["bits_per_byte_low"] < fp32["bits_per_byte"] < fp32["bits_per_byte_high"]
    assert fp32["energy"]["active_uj"] is None
    assert fp32["energy"]["reason"]


@pytest.mark.long
def test_a_shorter_window_foresees_no_better_and_one_document_has_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--variants", "fp32", "--documents", "1")
    long = inspected(tmp_path, *flags, "--meter", "simulated")
    short = inspected(tmp_path, *flags, "--meter", "none", "--window", "64", "--stride", "32")
    assert long["text"]["tokens_foreseen"] == short["text"]["tokens_foreseen"]
    assert short["variants"][0]["nats_per_token"] > long["variants"][0]["nats_per_token"]
    assert long["variants"][0]["nats_per_token_low"] is None
    assert long["variants"][0]["energy"]["quality"] in ("simulated", None)
    assert "One document has no intervals" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--window", "5000"), "--window 5000: the model takes at most"),
        (("--window", "8", "--stride", "8"), "--stride 8: must be less than the window, which is 8"),
        (("--stride", "0"), "--stride '0': must be a whole number, 1 or more"),
    ],
)
def test_windows_that_cannot_be_are_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    text = str(demo_llm_folder() / "heldout.txt")
    assert main(["inspect", "perplexity", "--model", "demo-llm", "--text", text, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_classifier_foresees_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.txt"
    path.write_text("a good film\n\na bad one\n")
    assert main(["inspect", "perplexity", "--model", "demo", "--text", str(path)]) == 2
    assert "inspect perplexity: demo" in capsys.readouterr().err
