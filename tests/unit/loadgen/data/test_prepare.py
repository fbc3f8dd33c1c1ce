"""`loadgen prepare`: from texts or from nothing to a dataset folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.fixtures.loadgen_data import make_tokenizer
from wattserve_common import dataset
from wattserve_common.errors import DatasetError
from wattserve_loadgen.data.prepare import prepare_file, prepare_random, prepare_random_images

CSV = "text,label\na good film,positive\n bad ,negative\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("model"), {"NEGATIVE": 1, "POSITIVE": 0})


@pytest.fixture(scope="module")
def bare_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("bare"))


def prepare(path: Path, out: Path, tokenizer: Path, **options: Any) -> dataset.Dataset:
    wanted = {"text_column": "text", "label_column": None, **options}
    prepare_file(path, out, tokenizer=str(tokenizer), **wanted)
    return dataset.load(out)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_texts_become_true_length_rows_with_the_models_label_ids(tmp_path: Path, model: Path) -> None:
    found = prepare(write(tmp_path, "r.csv", CSV), tmp_path / "out", model)
    assert [row.tolist() for row in found.rows] == [[2, 4, 5, 7, 3], [2, 6, 3]]
    assert found.labels.tolist() == [0, 1]


def test_the_description_says_how_the_dataset_was_made(tmp_path: Path, model: Path) -> None:
    source = write(tmp_path, "r.csv", CSV)
    assert prepare(source, tmp_path / "out", model).description == {
        "kind": "text",
        "source": str(source),
        "tokenizer": str(model),
        "rows": 2,
        "text_column": "text",
        "label_column": "label",
        "label_names": ["POSITIVE", "NEGATIVE"],
        "label_mapping": "the model's label2id",
        "max_length": 8,
        "truncated_rows": 0,
    }


def test_all_four_formats_give_the_same_rows(tmp_path: Path, model: Path) -> None:
    records = [{"text": "a good film", "label": "positive"}, {"text": " bad ", "label": "negative"}]
    write(tmp_path, "r.csv", CSV)
    write(tmp_path, "r.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "r.parquet")
    write(tmp_path, "r.txt", "a good film\n bad \n")
    found = {
        suffix: prepare(tmp_path / f"r.{suffix}", tmp_path / f"out-{suffix}", model)
        for suffix in ("csv", "jsonl", "parquet", "txt")
    }
    assert found["csv"].sha256 == found["jsonl"].sha256 == found["parquet"].sha256
    assert [row.tolist() for row in found["txt"].rows] == [row.tolist() for row in found["csv"].rows]
    assert found["txt"].labels.tolist() == [-1, -1]


def test_without_label_names_in_the_model_labels_are_sorted(tmp_path: Path, bare_tokenizer: Path) -> None:
    found = prepare(write(tmp_path, "r.csv", CSV), tmp_path / "out", bare_tokenizer)
    assert found.labels.tolist() == [1, 0]
    assert found.description["label_names"] == ["negative", "positive"]
    assert found.description["label_mapping"] == "sorted label names"


def test_generic_label_names_of_a_model_are_no_names(tmp_path: Path) -> None:
    model = make_tokenizer(tmp_path / "model", {"LABEL_0": 0, "LABEL_1": 1})
    assert prepare(write(tmp_path, "r.csv", CSV), tmp_path / "out", model).labels.tolist() == [1, 0]


def test_integer_labels_are_taken_as_they_are(tmp_path: Path, model: Path) -> None:
    source = write(tmp_path, "r.csv", "text,label\ngood,1\nbad,-1\n")
    assert prepare(source, tmp_path / "out", model).labels.tolist() == [1, -1]


def test_minus_one_among_names_is_a_row_without_a_label(tmp_path: Path, bare_tokenizer: Path) -> None:
    source = write(tmp_path, "r.csv", "text,label\ngood,positive\nbad,-1\n")
    found = prepare(source, tmp_path / "out", bare_tokenizer)
    assert found.labels.tolist() == [0, -1]
    assert found.description["label_names"] == ["positive"]


@pytest.mark.parametrize(
    ("label2id", "labels", "message"),
    [
        (
            {"NEGATIVE": 0, "POSITIVE": 1},
            ("0", "2"),
            "line 3: the label 2, but the model has 2 labels: NEGATIVE, POSITIVE; they count from 0",
        ),
        (
            {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
            ("2", "3"),
            "line 3: the label 3, but the model has 3 labels; they count from 0",
        ),
        (
            {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
            ("a", "b", "c", "d"),
            "4 label names (a, b, c, d), but the model has 3",
        ),
        (None, ("0", "-2"), "line 3: the label -2; a label is 0 or more, or -1 for a row without"),
        (None, ("99999999999999999999",), "line 2: the label 99999999999999999999; a label is 0 or more"),
    ],
)
def test_labels_that_a_sweep_would_refuse_are_refused_here(
    tmp_path: Path, label2id: dict[str, int] | None, labels: tuple[str, ...], message: str
) -> None:
    model = make_tokenizer(tmp_path / "model", label2id)
    source = write(tmp_path, "r.csv", "text,label\n" + "".join(f"good,{label}\n" for label in labels))
    with pytest.raises(DatasetError) as caught:
        prepare(source, tmp_path / "out", model)
    assert str(caught.value).startswith(f"{source}: {message}")
    assert not (tmp_path / "out").exists()


def test_a_model_that_never_said_how_many_labels_it_has_takes_any(tmp_path: Path) -> None:
    model = make_tokenizer(tmp_path / "model", {"LABEL_0": 0, "LABEL_1": 1})
    source = write(tmp_path, "r.csv", "text,label\ngood,7\n")
    assert prepare(source, tmp_path / "out", model).labels.tolist() == [7]


def test_a_classifier_with_two_nameless_labels_takes_two(tmp_path: Path) -> None:
    model = make_tokenizer(tmp_path / "model", {"LABEL_0": 0, "LABEL_1": 1})
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = ["DistilBertForSequenceClassification"]
    (model / "config.json").write_text(json.dumps(config))
    source = write(tmp_path, "r.csv", "text,label\ngood,2\n")
    with pytest.raises(DatasetError, match="line 2: the label 2, but the model has 2 labels"):
        prepare(source, tmp_path / "out", model)


def test_a_label_that_only_looks_like_a_number_is_a_name(tmp_path: Path, bare_tokenizer: Path) -> None:
    source = write(tmp_path, "r.csv", "text,label\ngood,--5\nbad,1\n")
    assert prepare(source, tmp_path / "out", bare_tokenizer).description["label_names"] == ["--5", "1"]


def test_long_rows_are_cut_and_counted(tmp_path: Path, model: Path) -> None:
    source = write(tmp_path, "r.txt", "a very very very very very very very good film\ngood\n")
    out = tmp_path / "out"
    made = prepare_file(
        source, out, tokenizer=str(model), text_column="text", label_column=None, max_length=5
    )
    assert (made.rows, made.truncated) == (2, 1)
    found = dataset.load(out)
    assert [row.tolist() for row in found.rows] == [[2, 4, 8, 8, 3], [2, 5, 3]]
    assert found.description["truncated_rows"] == 1


def test_a_text_may_be_longer_than_pythons_own_cells(tmp_path: Path, model: Path) -> None:
    source = write(tmp_path, "r.csv", f"text,label\n{'good ' * 40_000},positive\n")
    assert [len(row) for row in prepare(source, tmp_path / "out", model, max_length=8).rows] == [8]


def test_a_limit_takes_the_first_rows_and_looks_at_no_more(tmp_path: Path, model: Path) -> None:
    source = write(tmp_path, "r.csv", CSV + ",negative\n")
    assert len(prepare(source, tmp_path / "out", model, limit=2).rows) == 2


BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("r.csv", "text,label\ngood,positive\n,negative\n", {}, "line 3: the text is empty; remove the row"),
    (
        "r.csv",
        "text,label\ngood,positive\nbad,\n",
        {},
        "line 3: the label is empty; use -1 for a row without label, left out of accuracy",
    ),
    (
        "r.csv",
        "text,label\ngood,meh\n",
        {},
        "line 2: unknown label 'meh'; the model knows POSITIVE, NEGATIVE",
    ),
    (
        "r.csv",
        "text,label\ngood, but long,positive\n",
        {},
        "line 2: 3 fields, but the header has 2; quote commas",
    ),
    (
        "r.csv",
        'text,label\ngood,positive\n"a"b,positive\nbad,negative\n',
        {},
        "the row that begins on line 3: ',' expected after '\"'",
    ),
    ("r.csv", 'text,label\n\n"a,positive\nb,negative\n', {}, "the row that begins on line 3: unexpected end"),
    ("r.csv", f"text,label\ngood,{'9' * 4301}\n", {}, "line 2: unknown label '999"),
    ("r.csv", "text,label\n", {}, "no rows in it"),
    ("r.csv", "", {}, "no rows in it"),
    ("r.csv", CSV, {"text_column": "review"}, "line 2: no column 'review'; it has text, label"),
    ("r.csv", CSV, {"label_column": "stars"}, "line 2: no column 'stars'; it has text, label"),
    ("r.jsonl", '{"text": "good"}\n{"text": 5}\n', {}, "line 2: column 'text' holds no text"),
    ("r.jsonl", '{"text": "good"}\n["bad"]\n', {}, "line 2: a JSON object is wanted, found list"),
    (
        "r.jsonl",
        '{"text": "good", "label": 0.5}\n',
        {},
        "line 1: column 'label' holds 0.5; a label is a name or an integer",
    ),
    ("r.jsonl", '{"text": "good"}\n{"text": "\\ud800"}\n', {}, "line 2: \\ud800 in it is half a character"),
    ("r.jsonl", '{"text": "good", "label": "\\udfff"}\n', {}, "line 1: \\udfff in it is half a character"),
    ("r.jsonl", '{"text": "good", "text": "bad"}\n', {}, "the key 'text' stands there twice"),
    ("r.jsonl", "[" * 100_000 + "\n", {}, "line 1: not JSON (lists or objects in it are too deep)"),
    ("r.csv", "text,label,text\na,positive,b\n", {}, "two columns are called 'text'; rename one"),
    ("r.txt", "good\n\nbad\n", {}, "line 2: the text is empty; remove the row"),
    ("r.parquet", "not parquet", {}, "not a Parquet file"),
    ("r.xlsx", "", {}, "unknown kind of file; it must end in .csv, .jsonl, .parquet, .txt"),
]


@pytest.mark.parametrize(("name", "text", "options", "message"), BAD)
def test_each_bad_file_is_refused_with_its_place(
    tmp_path: Path, model: Path, name: str, text: str, options: dict[str, Any], message: str
) -> None:
    source = write(tmp_path, name, text)
    with pytest.raises(DatasetError) as caught:
        prepare(source, tmp_path / "out", model, **options)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(source))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


LONG = "text,label\r\n" + 700 * "a good film,positive\r\n"  # longer than a reader's buffer


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.txt", "très bon\n".encode("latin-1"), "line 1, column 3: not UTF-8 (byte 0xe8; if it is latin1:"),
        ("r.csv", (LONG + "à café,x").encode("latin-1"), "line 702, column 1: not UTF-8 (byte 0xe0; if"),
        ("r.csv", (LONG + "ñ ").encode() + b"caf\xe9,x", "line 702, column 6: not UTF-8 (byte 0xe9"),
        ("r.jsonl", b'\xef\xbb\xbf{"text": "\xe9"}', "line 1, column 11: not UTF-8 (byte 0xe9"),
        ("r.csv", "text\ngood".encode("utf-16"), "line 1, column 1: not UTF-8 (byte 0xff; if it is utf-16:"),
    ],
)
def test_a_file_in_another_encoding_is_refused_with_the_place_and_what_may_help(
    tmp_path: Path, model: Path, name: str, content: bytes, message: str
) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        prepare(source, tmp_path / "out", model)
    assert str(caught.value).startswith(f"{source}: {message}")
    assert str(caught.value).endswith(f" -t utf8 {name})")


@pytest.mark.parametrize("name", ["r.csv", "r.parquet"])
def test_a_file_without_a_column_of_labels_says_which_columns_it_has(
    tmp_path: Path, model: Path, name: str
) -> None:
    source = write(tmp_path, "r.csv", "message,mood,id\na good film,positive,7\n")
    if name == "r.parquet":
        source = tmp_path / name
        row = {"message": "a good film", "mood": "positive", "id": 7}
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), source)
    made = prepare_file(
        source, tmp_path / "out", tokenizer=str(model), text_column="message", label_column=None
    )
    assert made.labels == (
        "none, so no accuracy: no column 'label' (there are message, mood, id); --label-column names it"
    )
    with pytest.raises(DatasetError, match="no column 'stars'; it has message, mood, id"):
        prepare(source, tmp_path / "other", model, text_column="message", label_column="stars")


def test_a_file_of_texts_alone_has_no_labels_to_name(tmp_path: Path, model: Path) -> None:
    source = write(tmp_path, "r.txt", "good\n")
    made = prepare_file(source, tmp_path / "out", tokenizer=str(model), text_column="text", label_column=None)
    assert made.labels == "none, so no accuracy: there is only the column 'text'"


def test_a_missing_file_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere\.csv: no such file"):
        prepare(tmp_path / "nowhere.csv", tmp_path / "out", model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{tmp}/empty", "--tokenizer {tmp}/empty: the folder holds no tokenizer that transformers can load"),
        ("{tmp}/nowhere", "--tokenizer {tmp}/nowhere: no such folder"),
        (
            "no-such-org/no-such-model",
            "--tokenizer no-such-org/no-such-model: not in the local cache,"
            " and the hub cannot be reached from here",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_had_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError) as caught:
        prepare(write(tmp_path, "r.csv", CSV), tmp_path / "out", Path(name.format(tmp=tmp_path)))
    assert str(caught.value) == message.format(tmp=tmp_path)


@pytest.mark.parametrize(
    ("max_length", "message"),
    [(0, "--max-length 0: it must be at least 1"), (9, "the model takes at most 8 tokens")],
)
def test_an_impossible_length_is_refused(tmp_path: Path, model: Path, max_length: int, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        prepare(write(tmp_path, "r.csv", CSV), tmp_path / "out", model, max_length=max_length)


def test_rows_are_cut_to_what_the_server_of_the_model_takes(tmp_path: Path) -> None:
    from transformers import RobertaConfig

    unlimited = make_tokenizer(tmp_path / "model", model_max_length=10**30)
    config = RobertaConfig(vocab_size=9, max_position_embeddings=8, pad_token_id=1)
    config.save_pretrained(unlimited)
    source = write(tmp_path, "r.txt", "a very very very very very good film\ngood\n")
    rows = prepare(source, tmp_path / "out", unlimited).rows
    assert [len(row) for row in rows] == [6, 3]  # positions begin after the padding id
    with pytest.raises(DatasetError, match="--max-length 7: the model takes at most 6 tokens"):
        prepare(source, tmp_path / "longer", unlimited, max_length=7)


def test_a_tokenizer_alone_without_a_limit_cuts_to_512(tmp_path: Path) -> None:
    bare = make_tokenizer(tmp_path / "bare", model_max_length=10**30)
    source = write(tmp_path, "r.txt", "very " * 600 + "\n")
    assert [len(row) for row in prepare(source, tmp_path / "out", bare).rows] == [512]


def test_random_rows_are_like_sst2_in_length_and_have_no_labels(tmp_path: Path) -> None:
    prepare_random(tmp_path / "out", rows=4000, vocabulary_size=300, seed=1)
    found = dataset.load(tmp_path / "out")
    lengths = found.lengths
    assert (lengths.min(), lengths.max() <= 128) == (3, True)
    assert 27 < lengths.mean() < 29
    assert 23 < sorted(lengths)[2000] < 27  # the median is below the mean: skewed to the right
    assert set(found.labels.tolist()) == {-1}
    assert max(int(row.max()) for row in found.rows) < 300
    assert "accuracy does not apply" in found.description["note"]


def test_random_rows_repeat_with_their_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare_random(tmp_path / name, rows=20, vocabulary_size=300, seed=seed, max_length=40)
    a, b, c = (dataset.load(tmp_path / name).sha256 for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 0, "vocabulary_size": 9},
        {"rows": 1, "vocabulary_size": 1},
        {"rows": 1, "vocabulary_size": 9, "max_length": 2},
        {"rows": 1, "vocabulary_size": 2**31 + 1},
        {"rows": 1, "vocabulary_size": 9, "seed": -1},
    ],
)
def test_impossible_random_rows_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(DatasetError):
        prepare_random(tmp_path / "out", **options)


def test_random_images_repeat_with_their_seed_and_have_no_labels(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare_random_images(tmp_path / name, rows=5, pixel_shape=(3, 16, 24), seed=seed)
        found.append(dataset.load(tmp_path / name))
    assert found[0].pixel_shape == (3, 16, 24)
    assert len(found[0].rows) == 5
    assert not (found[0].labels != dataset.NO_LABEL).any()
    assert found[0].sha256 == found[1].sha256 != found[2].sha256


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rows": 0}, "--random-images 0"),
        ({"rows": 1, "pixel_shape": (3, 0, 4)}, "--pixel-shape"),
        ({"rows": 1, "seed": -1}, "--seed -1: it must be 0 or more"),
    ],
)
def test_impossible_random_images_are_refused(tmp_path: Path, options: Any, reason: str) -> None:
    with pytest.raises(DatasetError, match=reason):
        prepare_random_images(tmp_path / "out", **options)
