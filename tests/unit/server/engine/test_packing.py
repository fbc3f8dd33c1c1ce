"""Several sequences in one row: nobody is lost, nothing overlaps, little is computed for nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattserve_server.engine.variants.packing import STEP, WORTH, pack

LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=64)


def test_short_sequences_share_a_row_with_long_ones() -> None:
    layout = pack([64, 20, 44, 30, 34], width=768, limit=512)
    assert layout is not None
    assert (layout.rows, layout.length) == (3, 64)
    assert (layout.owners >= 0).all()  # 64, 44 + 20 and 34 + 30 fill three rows


def test_equal_lengths_are_not_packed() -> None:
    assert pack([16, 16, 16], width=768, limit=512) is None
    assert pack([5], width=768, limit=512) is None


def test_rows_grow_where_a_tail_would_cost_more_than_attention() -> None:
    lengths = [40, 30, 30, 30, 30]
    narrow, wide = pack(lengths, width=64, limit=512), pack(lengths, width=4096, limit=512)
    assert narrow is None  # attention over long rows would cost what it saves
    assert wide is not None
    assert wide.length > 40


@given(LENGTHS, st.sampled_from([32, 128, 768]))
def test_every_token_lies_in_one_place_and_finds_its_way_back(lengths: list[int], width: int) -> None:
    layout = pack(lengths, width, 512)
    if layout is None:
        return
    longest = max(lengths)
    padded = np.arange(1, len(lengths) * longest + 1)
    packed = padded[layout.gather]
    back = packed[layout.scatter]
    owners = layout.owners.reshape(-1)
    for index, tokens in enumerate(lengths):
        assert (back[index, :tokens] == padded.reshape(len(lengths), longest)[index, :tokens]).all()
        places = np.flatnonzero(owners == index)
        assert len(places) == tokens
        assert (np.diff(places) == 1).all()
        assert len(set(places // layout.length)) == 1  # a sequence is not torn apart


@given(st.lists(st.integers(1, 80), min_size=1, max_size=64), st.sampled_from([80, 90, 1000]))
def test_rows_are_no_longer_than_the_model_takes(lengths: list[int], limit: int) -> None:
    layout = pack(lengths, 4096, limit)
    if layout is not None:
        assert max(lengths) <= layout.length <= limit


@given(LENGTHS)
def test_packing_computes_less_than_padding_or_is_not_done(lengths: list[int]) -> None:
    layout = pack(lengths, 768, 512)
    if layout is not None:
        assert layout.length % STEP == 0
        assert sum(lengths) <= layout.rows * layout.length <= WORTH * len(lengths) * max(lengths)


@pytest.mark.parametrize("seed", range(5))
def test_lengths_like_those_of_sst2_leave_hardly_any_padding(seed: int) -> None:
    lengths = np.clip(np.round(np.random.default_rng(seed).lognormal(3.15, 0.6, 32)), 3, 128).astype(int)
    layout = pack([int(length) for length in lengths], 768, 512)
    assert layout is not None
    assert layout.rows * layout.length <= 1.08 * lengths.sum()
