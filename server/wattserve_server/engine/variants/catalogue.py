"""Every kind of variant, and the choice of those to serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from wattserve_server.engine.device import resolve_device
from wattserve_server.engine.variants import floats, fp8, int8, llm_int8, weight_only
from wattserve_server.engine.variants.port import Kind
from wattserve_server.errors import ConfigError

_KINDS = (
    floats.FP32, floats.TF32, floats.BF16, floats.FP16,
    int8.INT8, int8.INT8_STATIC, weight_only.INT8_WEIGHT_ONLY, weight_only.INT4_WEIGHT_ONLY, llm_int8.KIND,
    fp8.KIND,
    int8.INT8_SIMULATED, floats.FP16_AS_INT8_PROXY,
)  # fmt: skip
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant to serve."""

    name: str  # as requests name it, e.g. int8 or int8@cpu
    kind: Kind
    device: torch.device
    others: tuple[torch.device, ...] = ()  # of the same kind, that run it too: each has a copy and a lane

    @property
    def devices(self) -> tuple[torch.device, ...]:
        return (self.device, *self.others)

    def on(self, device: torch.device) -> Choice:
        """The same for one of its devices."""
        return replace(self, device=device, others=())


def choose(
    names: str | None,
    device: torch.device,
    is_calibrated: bool = False,
    kinds: Mapping[str, Kind] = KINDS,
    only: str = "",
    generates: bool = False,
    others: tuple[torch.device, ...] = (),
) -> list[Choice]:
    """names: comma-separated, each a kind, or KIND@DEVICE for another device than `device`; None for
    every kind that is native there and no proxy. is_calibrated: whether there is calibration data. kinds:
    those to choose from, and, where a model comes as one of them, `only` says so: that is then the default.
    generates: whether the model does. others: devices that share the variants of `device`.

    Raises ConfigError for an unknown name, a repeated one, or one that its device cannot run natively.
    """
    if names is None and only:
        names = ",".join(kinds)
    if names is None:
        offered = _offered(kinds, (device, *others), is_calibrated, generates)
        return [Choice(kind.name, kind, device, others) for kind in offered]
    chosen: list[Choice] = []
    for name in (part.strip() for part in names.split(",")):
        choice = choice_of(name, device, kinds, only)
        if "@" not in name:
            choice = replace(choice, others=others)
        elif others and choice.device.type == device.type:
            together = ", ".join(map(str, (device, *others)))
            raise ConfigError(
                f"variant {name!r}: --device shares every variant among {together}; leave out the @ and what "
                "follows it"
            )
        if (choice.kind, choice.device) in [(other.kind, other.device) for other in chosen]:
            raise ConfigError(f"variant {name!r} is listed twice")
        for each in choice.devices:
            support = choice.kind.support(each)
            if support.native:
                continue
            offered = _offered(kinds, choice.devices, is_calibrated, generates)
            names_of_it = ", ".join(kind.name for kind in offered)
            raise ConfigError(
                f"variant {name!r} cannot run on {each}: {support.why}. "
                f"{'All of them have' if others else 'It has'} {names_of_it or 'none'}"
            )
        if choice.kind.needs_calibration and not is_calibrated:
            raise ConfigError(
                f"variant {name!r} needs activation scales: give it --calibration DIR, a tokenised dataset "
                "of 512 rows or more that is not the one it is evaluated on"
            )
        chosen.append(choice)
    return chosen


def _offered(
    kinds: Mapping[str, Kind], devices: Sequence[torch.device], is_calibrated: bool, generates: bool
) -> list[Kind]:
    """On all of these devices."""
    return [
        kind
        for kind in kinds.values()
        if all(is_offered(kind, device, is_calibrated, generates) for device in devices)
    ]


def is_offered(kind: Kind, device: torch.device, is_calibrated: bool, generates: bool) -> bool:
    """Whether a kind is served where nothing is named: no proxy, nothing that needs data that is not there,
    nor what gains only where tokens come one by one."""
    is_fit = (is_calibrated or not kind.needs_calibration) and (generates or not kind.gains_by_decoding)
    return not kind.proxy and is_fit and kind.support(device).native


def choice_of(name: str, default: torch.device, kinds: Mapping[str, Kind], only: str = "") -> Choice:
    """As `choose` reads one name, whether the device runs it or not."""
    kind_name, at, place = name.partition("@")
    kind = kinds.get(kind_name)
    if kind is None and only:
        raise ConfigError(f"variant {name!r}: {only}")
    if kind is None:
        raise ConfigError(f"unknown variant {name!r}; known: {', '.join(kinds)}")
    if not at:
        return Choice(name, kind, default)
    if place not in ("cpu", "cuda") and not place.startswith("cuda:"):
        raise ConfigError(f"variant {name!r}: after the @ comes cpu, cuda or cuda:N, not {place!r}")
    return Choice(name, kind, resolve_device(place))
