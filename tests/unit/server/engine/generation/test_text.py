"""Text as it comes: whole characters, the same as all at once, and nothing of a stop string."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_server.engine.builtin.demo_llm import demo_llm_folder
from wattserve_server.engine.generation.text import TextStream


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_llm_folder())


TOKENIZER: list[Any] = []


@pytest.fixture(autouse=True)
def given_tokenizer(tokenizer: Any) -> None:
    TOKENIZER[:] = [tokenizer]


def streamed(text: str, stops: tuple[str, ...] = (), size: int = 1) -> tuple[str, TextStream, list[str]]:
    ids = TOKENIZER[0](text, add_special_tokens=False)["input_ids"]
    stream = TextStream(TOKENIZER[0], stops)
    pieces = []
    for begin in range(0, len(ids), size):
        pieces.append(stream.add(ids[begin : begin + size]))
        if stream.stop:
            break
    pieces.append(stream.end())
    return "".join(pieces), stream, pieces


@given(text=st.text(min_size=1, max_size=60), size=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_pieces_are_the_text(text: str, size: int) -> None:
    ids = TOKENIZER[0](text, add_special_tokens=False)["input_ids"]
    whole = TOKENIZER[0].decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert streamed(text, size=size)[0] == whole


def test_a_character_comes_whole() -> None:
    _, _, pieces = streamed("a \U0001f600 b")
    assert not any("\ufffd" in piece for piece in pieces)
    assert any("\U0001f600" in piece for piece in pieces)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_it_ends_before_the_first_stop_string_wherever_tokens_part_it(size: int) -> None:
    text, stream, _ = streamed("And he said unto them, Go ye out. And they went.", ("Go ye", "them, G"), size)
    assert (text, stream.stop) == ("And he said unto ", "them, G")


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize("stop", ["\U0001f600", "\U0001f600!", "\u00e9\U0001f600"])
def test_a_stop_string_of_characters_of_several_tokens_is_found_where_it_begins(stop: str, size: int) -> None:
    text, stream, pieces = streamed("a caf\u00e9\U0001f600! and more", (stop,), size)
    before = "a caf" if stop.startswith("\u00e9") else "a caf\u00e9"
    assert (text, stream.stop) == (before, stop)
    assert not any("\ufffd" in piece for piece in pieces)


def test_what_may_be_the_begin_of_a_stop_string_is_held_back_until_it_is_not() -> None:
    text, stream, pieces = streamed("one two thr two three four", ("two three",))
    assert (text, stream.stop) == ("one two thr ", "two three")
    assert not any(piece.endswith(("two", "two thr")) for piece in pieces[:2])
    assert streamed("so far two", ("two three",))[0] == "so far two"  # let out once nothing more comes


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None, ("x",))
    assert (stream.add((1, 2)), stream.end(), stream.stop) == ("", "", "")
