"""What oneDNN keeps of the shapes that it met is bounded, by what the command sets before torch is loaded."""

from __future__ import annotations

import platform

import pytest
import torch
from torch import nn

from tests.bench.memory.parts import allocated
from wattserve_server.engine.device import cpu_has
from wattserve_server.engine.variants.tuning import OneDnnLinear

SHAPES = 300
# Plans of a product take 0.26 MB, twice; torch's own bounds would let these 300 grow by more than 100 MB.
MOST_BYTES = 20_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc says what it has given out")
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(not cpu_has("avx512bw"), reason="oneDNN has no bf16 on this CPU"),
        ),
    ],
)
def test_shapes_beyond_the_first_few_hundred_take_no_more_memory(dtype: torch.dtype) -> None:
    layer = OneDnnLinear(nn.Linear(32, 32, dtype=dtype))

    def run(first: int) -> int:
        with torch.inference_mode():
            for tokens in range(first, first + SHAPES):
                layer(torch.zeros(tokens, 32, dtype=dtype))
        return allocated()["allocated"]

    filled = run(1)
    assert run(1 + SHAPES) - filled < MOST_BYTES
