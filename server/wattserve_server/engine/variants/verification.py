"""What a profiled batch says of the precision in which a variant really multiplies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.kernel_names import UNTOLD, kernel_facts
from wattserve_server.engine.variants.port import OPERANDS
from wattserve_server.engine.variants.profile import NOT_REPORTED, Profile, profile_batch
from wattserve_server.engine.variants.storage import stored_otherwise
from wattserve_server.engine.variants.trace import CONVOLUTION, MatrixCall
from wattserve_server.errors import ConfigError

if TYPE_CHECKING:  # a variant holds its verification
    from wattserve_server.engine.variants.variant import Variant

LEAST = 0.9
"""The share of multiply-accumulates that must run as declared, in the layers that the kind converts."""

LEAST_MIXED = 0.5
"""The same for a kind that openly mixes precisions inside its layers."""

LEAST_OVERALL = 0.5
"""The share of all multiplication by weights, kept layers and convolutions included: no variant is named
after the lesser part of its work."""

_SEQUENCES = 2
_TOKENS = 32
_KERNEL_NAME = 60  # characters of a kernel's name that words show


@dataclass(frozen=True, slots=True)
class Verification:
    """verified: the profiler saw the variant's linear layers multiply at the precision that its kind
    declares, and they store their weights as it declares. words: what it saw, or why it was not asked."""

    verified: bool
    words: str


UNVERIFIED = Verification(False, "not verified")


def verify(variant: Variant) -> Verification:
    """Profile one small batch, on the calling thread. Raises ConfigError, which says what ran instead, for a
    variant that does not multiply or store weights as its kind declares, or whose batch fails.

    It leaves the process as it was, so that on a GPU it goes without the kernels' names: torch's flags alone
    tell tf32 from fp32, and `wattserve inspect kernels` adds the names.
    """
    try:
        profile = profile_batch(variant, variant.prepare(sample(variant)))
    except Exception as error:  # whatever a model may raise
        raise ConfigError(
            f"variant {variant.name!r} failed the batch by which it was to be verified: "
            f"{type(error).__name__}: {error}"
        ) from error
    verification = judge(variant, profile)
    if not verification.verified:
        raise ConfigError(
            f"variant {variant.name!r} declares {declared(variant)} products, but {verification.words}: "
            "refused; --no-verify serves it anyway, and every receipt then says unverified"
        )
    return verification


def sample(variant: Variant) -> list[Item]:
    """A small batch of made-up items."""
    model = variant.model
    length = min(model.facts.max_tokens, _TOKENS)
    return [model.task.example(model.facts, model.tokenizer, length, seed) for seed in range(_SEQUENCES)]


def declared(variant: Variant) -> str:
    """The precision in which the linear layers are to multiply on the variant's device."""
    return variant.kind.support(variant.device).operands


def judge(variant: Variant, profile: Profile) -> Verification:
    """Whether the profile bears out what the kind declares on that device.

    Products between activations do not count. Layers that the kind says it kept count only among the whole.
    How weights are stored does not show in products, which may widen them first: the module itself tells.
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
        return Verification(
            False,
            _others(
                on_weights, profile, operands, "its work by weights, kept layers and convolutions included,"
            ),
        )
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
    found = " and ".join(f"{precision} ({', '.join(ops)})" for precision, ops in ran.items())
    return f"{_percent(_macs(wrong), _macs(calls))} of {whose} ran in {found}"


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
    wanted = f"{operands} x {operands}"
    found = [each for each in profile.implementations if each.operands == wanted]
    if any(call.op.startswith("mkldnn::") for call in right):  # attention may use another
        found = [each for each in found if each.library == "oneDNN"]
    return f"{found[0].library} {found[0].name}" if found else f"implementation {NOT_REPORTED}"


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
