"""`loadgen prepare --prompts` and `--random-prompts`: from texts, conversations or nothing to prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_data import make_tokenizer
from wattserve_common import dataset
from wattserve_common.errors import DatasetError
from wattserve_loadgen.data.lengths import parse_lengths
from wattserve_loadgen.data.prompts import prepare_prompts, prepare_random_prompts

TEMPLATE = "{% for turn in messages %}very {{ turn['content'] }} {% endfor %}a"
SHAREGPT: list[Any] = [
    {
        "conversations": [
            {"from": "human", "value": "a good film"},
            {"from": "gpt", "value": "very very good"},
            {"from": "human", "value": "bad"},
            {"from": "gpt", "value": "a"},
        ]
    },
    {"conversations": [{"from": "system", "value": "a"}, {"from": "human", "value": "bad"},
                       {"from": "gpt", "value": "good"}]},
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts become [CLS] words [SEP], and eight tokens are all that it takes."""
    return make_tokenizer(tmp_path_factory.mktemp("model"), {"NEGATIVE": 1, "POSITIVE": 0})


def write(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def prepare(source: Path, model: Path, output_tokens: str = "", **options: Any) -> dataset.Dataset:
    out = source.with_name("out")
    lengths = parse_lengths("--output-tokens", output_tokens) if output_tokens else None
    prepare_prompts(source, out, tokenizer=str(model), output_tokens=lengths, **options)
    return dataset.load(out)


def complaint(source: Path, model: Path, output_tokens: str = "") -> str:
    with pytest.raises(DatasetError) as raised:
        prepare(source, model, output_tokens)
    return str(raised.value)


def test_a_text_a_line_is_a_prompt_with_as_many_new_tokens_as_asked(tmp_path: Path, model: Path) -> None:
    found = prepare(write(tmp_path, "p.txt", "a good film\nbad\n"), model, "3")
    assert [row.tolist() for row in found.rows] == [[2, 4, 5, 7, 3], [2, 6, 3]]
    assert found.max_new_tokens == (3, 3)
    assert found.description["output_tokens"] == "3"
    assert not found.labelled


def test_a_prompt_is_cut_to_what_its_answer_leaves_of_the_context(tmp_path: Path, model: Path) -> None:
    found = prepare(write(tmp_path, "p.txt", "a good film\nbad\n"), model, "5")
    assert [len(row) for row in found.rows] == [3, 3]
    assert found.description["truncated_rows"] == 1


def test_conversations_give_prompts_and_the_lengths_of_their_answers(tmp_path: Path, model: Path) -> None:
    for name, text in (
        ("s.json", json.dumps(SHAREGPT)),
        ("s.jsonl", "\n".join(map(json.dumps, SHAREGPT))),
    ):
        (tmp_path / name).mkdir()
        found = prepare(write(tmp_path / name, name, text), model)
        assert [row.tolist() for row in found.rows] == [[2, 4, 5, 7, 3], [2, 4, 6, 3]]
        assert found.max_new_tokens == (3, 1)
        assert found.description["output_tokens"] == "as recorded"


def test_nothing_is_read_behind_the_limit(tmp_path: Path, model: Path) -> None:
    source = write(tmp_path, "s.jsonl", json.dumps(SHAREGPT[0]) + "\nno JSON\n")
    assert len(prepare(source, model, limit=1).rows) == 1


def test_messages_as_openai_writes_them_are_conversations_too(tmp_path: Path, model: Path) -> None:
    turns = [{"role": "user", "content": "bad"}, {"role": "assistant", "content": "good film"}]
    found = prepare(write(tmp_path, "m.jsonl", json.dumps({"messages": turns})), model)
    assert (found.rows[0].tolist(), found.max_new_tokens) == ([2, 6, 3], (2,))


def test_an_answer_takes_at_most_half_of_the_context(tmp_path: Path, model: Path) -> None:
    turns = [{"from": "human", "value": "bad"}, {"from": "gpt", "value": "a " * 30}]
    found = prepare(write(tmp_path, "s.json", [{"conversations": turns}]), model)
    assert found.max_new_tokens == (4,)
    assert found.description["shortened_answers"] == 1


def test_a_chat_template_is_applied_to_conversations_alone(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = make_tokenizer(tmp_path / "model", {"NEGATIVE": 1, "POSITIVE": 0})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    found = prepare(write(tmp_path, "s.json", SHAREGPT), folder)
    assert found.rows[1].tolist() == [8, 4, 8, 6, 4]  # very a, very bad, a
    assert found.description["chat_template"] is True
    (tmp_path / "texts").mkdir()
    texts = prepare(write(tmp_path / "texts", "p.txt", "bad\n"), folder, "2")
    assert texts.rows[0].tolist() == [2, 6, 3]
    assert texts.description["chat_template"] is False


@pytest.mark.parametrize(
    ("name", "value", "output_tokens", "message"),
    [
        ("p.txt", "bad\n", "", "line 1: no answer is recorded, so its length is not known; give"),
        ("p.txt", "bad\n", "8", "--output-tokens: 8 tokens leave no room for a prompt: the model takes 8"),
        ("s.json", {}, "", "must hold a list of conversations, found dict"),
        ("s.json", [], "", "no conversations in it"),
        ("s.json", [5], "", "conversation 1: no `conversations`"),
        ("s.json", "[", "", "not JSON"),
        ("s.json", [{"conversations": [{"from": "tool", "value": "x"}]}], "", "is no turn; it names"),
        ("s.json", [{"conversations": [{"from": "gpt", "value": "x"}]}], "", "nobody asks anything in it"),
    ],
)  # fmt: skip
def test_what_is_no_prompt_is_told_in_one_sentence(
    tmp_path: Path, model: Path, name: str, value: Any, output_tokens: str, message: str
) -> None:
    assert message in complaint(write(tmp_path, name, value), model, output_tokens)


def test_random_prompts_have_the_lengths_asked_for(tmp_path: Path) -> None:
    lengths = {
        "prompt_tokens": parse_lengths("--prompt-tokens", "uniform:3-9"),
        "output_tokens": parse_lengths("--output-tokens", "7"),
    }
    for out in ("one", "two"):
        prepare_random_prompts(tmp_path / out, rows=50, vocabulary_size=30, seed=4, **lengths)
    found, again = dataset.load(tmp_path / "one"), dataset.load(tmp_path / "two")
    assert found.sha256 == again.sha256
    assert set(found.lengths.tolist()) == set(range(3, 10))
    assert set(found.max_new_tokens) == {7}
    assert max(int(row.max()) for row in found.rows) < 30


def test_lengths_of_the_four_kinds(tmp_path: Path) -> None:
    def drawn(text: str, count: int = 4000) -> np.ndarray[Any, Any]:
        return np.array(parse_lengths("--x", text).draw(count, np.random.default_rng(1)))

    assert drawn("64", 3).tolist() == [64, 64, 64]
    assert (drawn("uniform:5-7").min(), drawn("uniform:5-7").max()) == (5, 7)
    spread = np.log(drawn("lognormal:40,0.5"))
    assert np.exp(np.median(spread)) == pytest.approx(40, rel=0.03)
    assert spread.std() == pytest.approx(0.5, rel=0.05)
    recorded = write(tmp_path, "lengths.txt", "5\n\n9\n2\n")
    assert drawn(f"recorded:{recorded}", 5).tolist() == [5, 9, 2, 5, 9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipf:2", "--x 'zipf:2': not a distribution of lengths; write 64, uniform:16-64"),
        ("64:", "not a distribution of lengths"),
        ("0", "a length is from 1 to 1,000,000 tokens"),
        ("uniform:9-3", "9 is above 3"),
        ("lognormal:40", "write the median and the deviation"),
        ("lognormal:0,1", "the median is 1 or more, and the deviation from 0 to 3"),
        ("lognormal:nan,1", "the median is 1 or more"),
        ("recorded:/nowhere", "cannot be read"),
    ],
)
def test_lengths_that_are_none_are_told_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(DatasetError) as raised:
        parse_lengths("--x", text)
    assert message in str(raised.value)


def test_recorded_lengths_name_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "l.txt", "5\nmany\n")
    with pytest.raises(DatasetError, match="line 2: 'many' is no length"):
        parse_lengths("--x", f"recorded:{path}")
    write(tmp_path, "l.txt", "\n")
    with pytest.raises(DatasetError, match="no lengths in it"):
        parse_lengths("--x", f"recorded:{path}")
