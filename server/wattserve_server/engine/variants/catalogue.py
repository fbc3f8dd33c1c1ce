"""Every kind of variant, and the choice of those to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from wattserve_server.engine.device import resolve_device
from wattserve_server.engine.variants import floats, fp8, int8, llm_int8
from wattserve_server.engine.variants.port import Kind
from wattserve_server.errors import ConfigError

_KINDS = (
    floats.FP32, floats.TF32, floats.BF16, floats.FP16,
    int8.INT8, int8.INT8_STATIC, int8.INT8_WEIGHT_ONLY, llm_int8.KIND, fp8.KIND,
    int8.INT8_SIMULATED, floats.FP16_AS_INT8_PROXY,
)  # fmt: skip
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant to serve."""

    name: str  # as requests name it, e.g. int8 or int8@cpu
    kind: Kind
    device: torch.device


def choose(
    names: str | None,
    device: torch.device,
    is_calibrated: bool = False,
    kinds: Mapping[str, Kind] = KINDS,
    only: str = "",
) -> list[Choice]:
    """names: comma-separated, each a kind, or KIND@DEVICE for another device than `device`; None for
    every kind that is native there and no proxy. is_calibrated: whether there is calibration data. kinds:
    those to choose from, and, where a model comes as one of them, `only` says so: that is then the default.

    Raises ConfigError for an unknown name, a repeated one, or one that its device cannot run natively.
    """
    if names is None and only:
        names = ",".join(kinds)
    if names is None:
        return [Choice(kind.name, kind, device) for kind in _offered(kinds, device, is_calibrated)]
    chosen: list[Choice] = []
    for name in (part.strip() for part in names.split(",")):
        choice = choice_of(name, device, kinds, only)
        if (choice.kind, choice.device) in [(other.kind, other.device) for other in chosen]:
            raise ConfigError(f"variant {name!r} is listed twice")
        support = choice.kind.support(choice.device)
        if not support.native:
            offered = ", ".join(kind.name for kind in _offered(kinds, choice.device, is_calibrated))
            raise ConfigError(
                f"variant {name!r} cannot run on {choice.device}: {support.why}. It has {offered or 'none'}"
            )
        if choice.kind.needs_calibration and not is_calibrated:
            raise ConfigError(
                f"variant {name!r} needs activation scales: give it --calibration DIR, a tokenised dataset "
                "of 512 rows or more that is not the one it is evaluated on"
            )
        chosen.append(choice)
    return chosen


def _offered(kinds: Mapping[str, Kind], device: torch.device, is_calibrated: bool) -> list[Kind]:
    """What the device runs natively, without proxies and what needs data that is not there."""
    return [
        kind
        for kind in kinds.values()
        if not kind.proxy and kind.support(device).native and (is_calibrated or not kind.needs_calibration)
    ]


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
