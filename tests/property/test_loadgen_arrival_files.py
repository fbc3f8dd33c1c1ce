"""Arrivals from any rate and any file: in order, within the window, or a PlanError of one line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan import arrivals

rates, seconds = st.floats(1e-3, 2_000), st.floats(1e-3, 5)
pieces = st.sampled_from(
    ["0", "1.5", "2", "-1", "1e999", "nan", "at", ",", '"', "\n", "\r", "\x00", "{", '{"at":1}', "é"]
)


@given(rates, rates, seconds, st.text())
def test_arrivals_are_in_order_and_within_the_window(
    rate: float, other: float, length: float, seed: str
) -> None:
    for found in (
        arrivals.constant(rate, length),
        arrivals.poisson(rate, length, seed.encode("utf-8", "replace").decode()),
        arrivals.ramp(rate, other, length, seed.encode("utf-8", "replace").decode()),
    ):
        assert found.dtype == np.int64
        assert np.all(np.diff(found) >= 0)
        assert len(found) == 0 or (found[0] >= 0 and found[-1] < round(length * 1e9))


@settings(max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=60), st.lists(pieces, max_size=12).map(lambda parts: "".join(parts).encode())
    ),
    st.sampled_from(["a.txt", "a.csv", "a.jsonl"]),
)
def test_any_file_is_played_or_refused_in_one_line(contents: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(contents)
        try:
            found = arrivals.recorded(path)
        except PlanError as refused:
            message, offsets = str(refused), np.zeros(1, dtype=np.int64)
        else:
            message, offsets = "", found.offsets_ns
    assert "\n" not in message
    assert offsets[0] == 0
    assert np.all(np.diff(offsets) >= 0)


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=20), st.floats(0.1, 3))
def test_repeated_arrivals_stay_in_order_and_begin_with_the_recording(gaps: list[int], length: float) -> None:
    offsets = np.cumsum([0, 10**7, *gaps])
    found = arrivals.repeated(offsets, length)
    assert np.all(np.diff(found) >= 0)
    assert found[-1] < round(length * 1e9)
    first = arrivals.cut(offsets, length)
    assert found[: len(first)].tolist() == first.tolist()
