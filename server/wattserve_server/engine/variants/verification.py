"""Whether a variant is what its name says: in what it multiplies, by a profiled batch, and in what it stores
its weights, by its module: products do not show it, for weights may be widened ahead of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.phase import decoding
from wattserve_server.engine.variants.port import OPERANDS, Built, Kind
from wattserve_server.engine.variants.profile import (
    NOT_REPORTED,
    UNTOLD,
    Profile,
    kernel_facts,
    profile_batch,
)
from wattserve_server.engine.variants.trace import CONVOLUTION, MatrixCall
from wattserve_server.engine.weights import stored_tensors
from wattserve_server.errors import ConfigError

if TYPE_CHECKING:  # a variant holds its verification
    from wattserve_server.engine.variants.variant import Variant

# The share of multiply-accumulates that must run as declared, in the layers that the kind converts; and the
# same for a kind that openly mixes precisions inside its layers.
LEAST, LEAST_MIXED = 0.9, 0.5
# The share of all multiplication by weights, kept layers and convolutions included: no variant is named after
# the lesser part of its work.
LEAST_OVERALL = 0.5

# What libraries pack several weights in, as GPTQ does its int8.
_CONTAINERS = (torch.int32, torch.uint8)
# Operators that multiply by code of torch's own on a CPU, whatever library computes other products meanwhile.
_BY_TORCH = ("aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm_for_cpu")
_SEQUENCES = 2
_TOKENS = 32
_KERNEL_NAME = 60  # characters of a kernel's name that words show


@dataclass(frozen=True, slots=True)
class Verification:
    # The profiler saw the linear layers multiply as the variant's kind declares, and they store weights so.
    verified: bool
    words: str  # what it saw, or why it was not asked


UNVERIFIED = Verification(False, "not verified")


def verify(variant: Variant) -> Verification:
    """Profile one small batch, on the calling thread; of a model that generates one of prompts and one that
    decodes, for a kind may multiply otherwise there. Raises ConfigError, which says what ran instead, for a
    variant that does not multiply or store weights as its kind declares, or whose batch fails.

    It leaves the process as it was, so that on a GPU it goes without the kernels' names: torch's flags alone
    tell tf32 from fp32, and `wattserve inspect kernels` adds the names.
    """
    if not variant.model.task.generates:
        return _verified(variant, sample(variant))
    prompts = _verified(variant, sample(variant), "prompts: ")
    with decoding(_SEQUENCES):
        decoded = _verified(variant, sample(variant, tokens=1), "decoding: ")
    return Verification(True, f"{prompts.words}; {decoded.words}")


def _verified(variant: Variant, items: Sequence[Item], phase: str = "") -> Verification:
    """phase: of what is computed, for people."""
    try:
        profile = profile_batch(variant, variant.prepare(items))
    except Exception as error:  # whatever a model may raise
        raise ConfigError(
            f"variant {variant.name!r} failed the batch by which it was to be verified: {phase}"
            f"{type(error).__name__}: {error}"
        ) from error
    verification = judge(variant, profile)
    if not verification.verified:
        raise ConfigError(
            f"variant {variant.name!r} declares {declared(variant)} products, but {phase}"
            f"{verification.words}: refused; --no-verify serves it anyway, and every receipt then says "
            "unverified"
        )
    return replace(verification, words=phase + verification.words)


def sample(variant: Variant, tokens: int = _TOKENS) -> list[Item]:
    """A small batch of made-up items of so many tokens each."""
    model = variant.model
    length = min(model.facts.max_tokens, tokens)
    return [model.task.example(model.facts, model.tokenizer, length, seed) for seed in range(_SEQUENCES)]


def declared(variant: Variant) -> str:
    """The precision in which the linear layers are to multiply on the variant's device."""
    return variant.kind.support(variant.device).operands


def judge(variant: Variant, profile: Profile) -> Verification:
    """Whether the profile bears out what the kind declares on that device.

    Products between activations do not count. Layers that the kind says it kept count only among the whole.
    """
    operands = declared(variant)
    unseen = sorted(profile.unseen)
    if len(unseen) > (1 - LEAST) * len(profile.layers):
        return Verification(
            False,
            f"{len(unseen)} of the {len(profile.layers)} linear layers that ran, such as {unseen[0]}, "
            "multiplied in no way that the profiler knows",
        )
    on_weights = [call for call in profile.calls if call.on_weights]
    judged = [call for call in on_weights if is_judged(call, operands, variant.built.kept)]
    if not _macs(judged):
        return Verification(False, "the profiler saw none of its linear layers multiply")
    least = LEAST_MIXED if _is_mixed(variant.kind.weights) else LEAST
    if _share(judged, profile, operands) < least:
        return Verification(False, _others(judged, profile, operands, "its linear layers' work"))
    if _share(on_weights, profile, operands) < LEAST_OVERALL:
        whole = "its work by weights, kept layers and convolutions included,"
        return Verification(False, _others(on_weights, profile, operands, whole))
    otherwise = stored_otherwise(variant.kind, variant.built)
    if otherwise:
        return Verification(False, otherwise)
    right = [call for call in judged if profile.precision(call) == operands]
    what = "linear layers" + (" and convolutions" if any(call.op == CONVOLUTION for call in judged) else "")
    ops = ", ".join(dict.fromkeys(call.op for call in right))
    share = _percent(_macs(right), _macs(judged))
    words = (
        f"profiled: {share} of {_count(_macs(judged))} multiply-accumulates of {what} as "
        f"{operands} x {operands} ({ops}; {_hardware(profile, right, operands)})"
    )
    rest = [call for call in on_weights if call not in judged]
    return Verification(True, words + _kept_words(rest, on_weights, profile))


def is_judged(call: MatrixCall, operands: str, kept: Sequence[str]) -> bool:
    """Whether a product by weights is one of those that the kind makes a promise of.

    Convolutions have no int8 or fp8 form here: kinds of those convert linear layers and say so."""
    left_as_it_was = call.op == CONVOLUTION and operands in ("int8", "fp8")
    return call.layer not in kept and not left_as_it_was


def _is_mixed(weights: str) -> bool:
    """Whether a kind says that it stores its layers' weights in more precisions than one."""
    return sum(name in weights for name in OPERANDS) > 1


def _macs(calls: Iterable[MatrixCall]) -> int:
    return sum(call.macs for call in calls)


def _share(calls: Sequence[MatrixCall], profile: Profile, operands: str) -> float:
    right = (call for call in calls if profile.precision(call) == operands)
    return _macs(right) / _macs(calls)


def _others(calls: Sequence[MatrixCall], profile: Profile, operands: str, whose: str) -> str:
    """E.g. ``97 % of its linear layers' work ran in fp32 (aten::addmm)``, `whose` being all up to "ran"."""
    wrong = [call for call in calls if profile.precision(call) != operands]
    ran: dict[str, dict[str, None]] = {}
    for call in sorted(wrong, key=lambda call: -call.macs):
        ran.setdefault(profile.precision(call), {})[call.op] = None
    precisions = " and ".join(f"{precision} ({', '.join(ops)})" for precision, ops in ran.items())
    return f"{_percent(_macs(wrong), _macs(calls))} of {whose} ran in {precisions}"


def _hardware(profile: Profile, right: Sequence[MatrixCall], operands: str) -> str:
    """What did the work, as far as it was reported."""
    if profile.device == "cuda":
        kernels = Counter(
            kernel for call in right for kernel in call.kernels if kernel_facts(kernel) != UNTOLD
        )
        if kernels:
            return f"{kernels.most_common(1)[0][0][:_KERNEL_NAME]}; {profile.units()}"
        if operands in ("fp32", "tf32"):
            return f"TF32 {'on' if profile.flags.products == 'tf32' else 'off'} by torch's flag"
        return f"kernels {NOT_REPORTED}"
    if all(call.op in _BY_TORCH for call in right):
        return "torch's own code"
    wanted = f"{operands} x {operands}"
    matching = [code for code in profile.implementations if code.operands == wanted]
    if any(call.op.startswith("mkldnn::") for call in right):  # attention may use another
        matching = [code for code in matching if code.library == "oneDNN"]
    return f"{matching[0].library} {matching[0].name}" if matching else f"implementation {NOT_REPORTED}"


def _kept_words(rest: Sequence[MatrixCall], on_weights: Sequence[MatrixCall], profile: Profile) -> str:
    if _macs(rest) * 1000 < _macs(on_weights):
        return ""
    precisions = ", ".join(dict.fromkeys(profile.precision(call) for call in rest))
    kinds = dict.fromkeys("convolutions" if call.op == CONVOLUTION else "kept layers" for call in rest)
    what = " and ".join(kinds)
    share = _percent(_macs(rest), _macs(on_weights))
    return f"; {share} of all multiplication by weights, its {what}, in {precisions}"


def _percent(part: int, whole: int) -> str:
    """Rounded down: nothing short of all is 100 %."""
    return f"{1000 * part // whole / 10:g} %"


def _count(macs: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if macs >= size:
            return f"{macs / size:.1f} {unit}"
    return str(macs)


def stored_otherwise(kind: Kind, built: Built) -> str:
    """What the converted layers hold instead of what the kind declares, for people. Empty where they hold
    that, or where the kind names no dtype that is known here: weights rounded to levels and stored in
    floating point, or packed by another library in fewer than 8 bits."""
    names = kind.weights.split(" and ")
    if not set(names) <= OPERANDS.keys():
        return ""
    wanted = {OPERANDS[name] for name in names}
    parts = dict(built.module.named_modules())
    held = {path: stored_in(parts[path]) if path in parts else set() for path in built.converted}
    wrong = {path: dtypes for path, dtypes in held.items() if dtypes != wanted}
    if not wrong:
        return ""
    path, dtypes = next(iter(wrong.items()))
    words = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
    return (
        f"{len(wrong)} of its {len(held)} converted layers, such as {path}, hold their weights in "
        f"{words or 'nothing'}, not in {kind.weights} as declared"
    )


def stored_in(layer: nn.Module) -> set[torch.dtype]:
    """The dtypes of a linear layer's weights: of the tensors in it that have the most numbers, however many
    copies it holds. int8 for weights of 8 bits that are packed in a wider dtype."""
    tensors = list(stored_tensors((*layer.parameters(), *layer.buffers())))
    most = max((tensor.numel() for tensor in tensors), default=0)
    return {_unpacked(tensor, layer) for tensor in tensors if tensor.numel() == most}


def _unpacked(tensor: torch.Tensor, layer: nn.Module) -> torch.dtype:
    weights = getattr(layer, "in_features", 0) * getattr(layer, "out_features", 0)
    if tensor.dtype in _CONTAINERS and tensor.numel() * tensor.element_size() == weights:
        return torch.int8
    return tensor.dtype
