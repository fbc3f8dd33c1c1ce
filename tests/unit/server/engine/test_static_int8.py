"""int8-static in bytes from layer to layer computes what its layers compute one by one."""

from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from wattserve_server.engine.device import cpu_has
from wattserve_server.engine.variants import static_int8
from wattserve_server.engine.variants.int8 import StaticInt8Linear
from wattserve_server.engine.variants.static_int8 import OneDnnStaticLinear, to_bytes, use_bytes

WIDTH = 32

# Of this CPU itself, whatever the tests make it say: oneDNN's sums of bytes saturate without.
pytestmark = pytest.mark.skipif(
    not (cpu_has("avx512_vnni") or cpu_has("amx_int8")),
    reason="this CPU multiplies bytes neither by VNNI nor AMX",
)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(3)
        yield


def static(inputs: int, outputs: int, scale: float = 0.03) -> StaticInt8Linear:
    layer = StaticInt8Linear.of(nn.Linear(inputs, outputs))
    layer.input_scale.fill_(scale)
    return layer


class Block(nn.Module):
    """As of a transformer: three layers take one input, and two stand around a GELU."""

    def __init__(self, key_scale: float = 0.03, with_residual: bool = False) -> None:
        super().__init__()
        self.query, self.value = static(WIDTH, WIDTH), static(WIDTH, WIDTH)
        self.key = static(WIDTH, WIDTH, key_scale)
        self.up, self.gelu, self.down = static(WIDTH, 64), nn.GELU(), static(64, WIDTH, 0.02)
        self.with_residual = with_residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.query(x) + self.key(x) * self.value(x)
        inner = self.gelu(self.up(mixed))
        out: torch.Tensor = self.down(inner)
        return out + inner[..., :WIDTH] if self.with_residual else out


def tokens(count: int = 12) -> torch.Tensor:
    return torch.randn(2, count // 2, WIDTH)


def exchanged(block: Block) -> Block:
    assert use_bytes(block, torch.float32, lambda: block(tokens()), ExitStack()) == 5
    return block


def layers(block: Block) -> dict[str, OneDnnStaticLinear]:
    return {name: part for name, part in block.named_children() if isinstance(part, OneDnnStaticLinear)}


def test_bytes_are_levels_around_128_and_what_is_too_large_is_the_largest() -> None:
    made = to_bytes(torch.tensor([[0.0, 1.0, -1.0, 0.26, 99.0, -99.0]]), 0.5)
    assert made.levels.tolist() == [[128, 130, 126, 129, 255, 1]]
    assert made.levels.dtype == torch.uint8
    assert made.faults is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_computes_what_the_plain_one_does(dtype: torch.dtype) -> None:
    plain, x = static(WIDTH, 48), tokens().to(dtype)
    result = OneDnnStaticLinear(plain, dtype)(x)
    assert (result.shape, result.dtype) == ((2, 6, 48), dtype)
    # In bf16 some inputs are in the middle of two levels, which are 0.03 apart.
    atol = 1e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(result, plain(x), rtol=1e-5, atol=atol)


def test_a_block_computes_what_its_layers_do_one_by_one() -> None:
    block, x = Block(), tokens()
    before = block(x)
    after = exchanged(block)(x)
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.02 * float(before.abs().max()))
    assert isinstance(block.gelu, nn.Identity)


def test_what_three_layers_take_is_turned_into_bytes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    block = exchanged(Block())
    counted = Mock(wraps=to_bytes)
    monkeypatch.setattr(static_int8, "to_bytes", counted)
    for _ in range(2):
        block(tokens())
    assert counted.call_count == 4  # in each run for the three and for `up`; `down` takes what `up` wrote


def test_layers_with_other_scales_have_bytes_of_their_own() -> None:
    block, x = Block(key_scale=0.05), tokens()
    before = block(x)
    after = exchanged(block)(x)
    assert len({id(layer.takes) for layer in layers(block).values()}) == 5
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.02 * float(before.abs().max()))


def test_a_layer_that_runs_again_in_other_company_shares_nothing() -> None:
    class Again(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.query(x) + x)

    block, x = Again(), tokens()
    before = block(x)
    after = exchanged(block)(x)
    assert layers(block)["query"].takes is not layers(block)["key"].takes
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.02 * float(before.abs().max()))


def test_what_a_failed_batch_left_is_not_taken_for_the_next_one() -> None:
    block, x = exchanged(Block()), tokens()
    before = block(x)
    layers(block)["query"](tokens())  # and then its batch failed
    torch.testing.assert_close(block(x), before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_that_is_not_finite_has_no_answer_and_leaves_others_alone(
    fault: float, dtype: torch.dtype
) -> None:
    block = Block()
    use_bytes(block, dtype, lambda: block(tokens()), ExitStack())
    x = tokens().to(dtype)
    broken = x.clone()
    broken[1, 2, 7] = fault
    before, after = block(x), block(broken)
    assert after[1, 2].isnan().all()
    after[1, 2] = before[1, 2]
    assert torch.equal(after, before)
    assert torch.equal(block(x), before)  # the fault stays with its batch


def test_the_exchange_can_be_undone() -> None:
    block, x = Block(), tokens()
    before = block(x)
    with ExitStack() as undo:
        use_bytes(block, torch.float32, lambda: block(x), undo)
    assert not layers(block)
    assert torch.equal(block(x), before)
