"""What is inspected: a model, its variants, and fp32 on the same device to hold each against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from wattserve_common.dataset import Dataset
from wattserve_common.machine import usable_cores
from wattserve_common.words import counted
from wattserve_server.config import ServerConfig
from wattserve_server.console import say
from wattserve_server.engine.checkpoint import without_path
from wattserve_server.engine.device import resolve_device
from wattserve_server.engine.model import LoadedModel, kinds_of, load_model, task_of
from wattserve_server.engine.rows import calibrated_scales
from wattserve_server.engine.variants.catalogue import KINDS, Choice, choice_of, choose
from wattserve_server.engine.variants.port import Kind, Materials
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.errors import ConfigError

REFERENCE = "fp32"
# A device without TF32 computes it as fp32, and one that is told to compute fp32 as TF32 does so: there is
# nothing to emulate, only a wrong name. Tensor Cores accumulate fp8 in fewer bits than an emulation would.
_NEVER_EMULATED = ("fp32", "tf32", "fp8")


@dataclass(frozen=True)
class Chosen:
    choice: Choice
    # Why the device does not run it natively: its answers then are those of the precision, its speed is not.
    emulated: str = ""


@dataclass(frozen=True)
class Examined:
    """A variant that was made."""

    variant: Variant
    emulated: str = ""  # see `Chosen`

    @property
    def label(self) -> str:
        """Its name, with what must not be missed."""
        marks = [("PROXY", self.variant.kind.proxy), ("emulated", self.emulated)]
        return self.variant.name + "".join(f" ({mark})" for mark, why in marks if why)

    @property
    def is_reference(self) -> bool:
        return self.variant.kind.name == REFERENCE

    def as_json(self) -> dict[str, Any]:
        variant = self.variant
        return {
            "variant": variant.name,
            "kind": variant.kind.name,
            "device": str(variant.device),
            "emulated": bool(self.emulated),
            "emulated_reason": self.emulated or None,
            "proxy": variant.kind.proxy or None,
            "activation_dtype": variant.dtype or None,
            "kernels": variant.kernels or None,
            "how": variant.built.detail,
            "converted_layers": len(variant.built.converted),
            "kept_layers": list(variant.built.kept),
        }


@dataclass
class Subject:
    """The model, and the variants to make of it."""

    model: LoadedModel
    device: torch.device
    chosen: list[Chosen]
    are_named: bool  # the user asked for these, so that one that cannot be made is an error
    materials: Materials
    no_reference: str = ""  # why no variant can be held against fp32; empty where one can

    def build(self) -> Iterator[Examined]:
        """Make one variant after the other. Raises ConfigError for a named one that cannot be made, and in
        the end where none could."""
        is_any_made = False
        for chosen in self.chosen:
            try:
                variant = build_variant(self.model, chosen.choice, self.materials)
            except (ConfigError, RuntimeError, NotImplementedError) as error:  # out of memory among them
                words = f"variant {chosen.choice.name!r} cannot be made on {chosen.choice.device}: {error}"
                if self.are_named:
                    raise ConfigError(words) from error
                say(f"left out: {words}")
                continue
            is_any_made = True
            yield Examined(variant, chosen.emulated)
        if not is_any_made:
            names = ", ".join(chosen.choice.name for chosen in self.chosen)
            raise ConfigError(
                f"no variant of {self.model.name} could be made" + (f": {names}" if names else "")
            )

    def as_json(self) -> dict[str, Any]:
        model = self.model
        return {
            "name": model.name,
            "source": without_path(model.source),
            "task": model.task.name,
            "parameters": model.parameters,
            "random_weights": model.has_random_weights,
            "labels": model.labels,
        }

    def notes(self, examined: list[Examined]) -> list[str]:
        """What must be said of the variants, whatever was looked at."""
        notes = []
        if self.model.has_random_weights:
            notes.append(
                "The model has random weights: its answers mean nothing, and neither would accuracy."
            )
        for entry in examined:
            variant = entry.variant
            if variant.kind.proxy:
                notes.append(f"{variant.name} is a proxy: {variant.kind.proxy}")
            if entry.emulated:
                notes.append(
                    f"{variant.name} is emulated on {variant.device}: {entry.emulated}. Its numbers are "
                    "close to those of hardware that has it, its speed is not."
                )
        return notes


def open_model(config: ServerConfig) -> LoadedModel:
    """Raises ConfigError."""
    if config.threads > usable_cores():
        cores = counted(usable_cores(), "core")
        raise ConfigError(f"--threads {config.threads}: this process may use {cores}")
    torch.set_num_threads(config.threads or usable_cores())
    task = task_of(config.model, config.task)
    return load_model(config.model, task, trust_remote_code=config.trust_remote_code)


def choose_subject(
    config: ServerConfig,
    model: LoadedModel,
    *,
    allow_emulated: bool,
    against_fp32: bool = True,
    calibration: Dataset | None = None,
) -> Subject:
    """The variants that --variants names, or all native ones; of a model that comes as one variant, that.
    against_fp32: with fp32 first on each of their devices, where the model has it. Raises ConfigError for
    what cannot be chosen."""
    device = resolve_device(config.device)
    kinds, only = kinds_of(config.model, model.task, config.trust_remote_code)
    is_calibrated = calibration is not None
    if only and is_calibrated:
        raise ConfigError(f"--calibration: {only}, which is not calibrated again")
    chosen: list[Chosen] = []
    if not (config.variants and allow_emulated):
        choices = choose(config.variants or None, device, is_calibrated, kinds, only, model.task.generates)
        chosen = [Chosen(choice) for choice in choices]
    else:
        for name in (part.strip() for part in config.variants.split(",")):
            variant = _chosen(name, device, kinds, is_calibrated, only)
            places = [(other.choice.kind.name, other.choice.device) for other in chosen]
            if (variant.choice.kind.name, variant.choice.device) in places:
                raise ConfigError(f"variant {name!r} is listed twice")
            chosen.append(variant)
    scales = None
    if calibration is not None and any(variant.choice.kind.needs_calibration for variant in chosen):
        scales = calibrated_scales(model, calibration)
    materials = Materials(model.weights, scales)
    no_reference = ""
    if REFERENCE not in kinds:  # in words without the path that `only` has
        names = ", ".join(kinds)
        no_reference = f"{model.name} comes as {names} only: there is no {REFERENCE} to hold it against"
    if against_fp32 and not no_reference:
        chosen = _with_references(chosen, device, kinds)
    return Subject(model, device, chosen, bool(config.variants), materials, no_reference)


def _chosen(
    name: str, device: torch.device, kinds: Mapping[str, Kind], is_calibrated: bool, only: str
) -> Chosen:
    """Kinds of other libraries' are not emulated: nobody knows what those would run instead."""
    kind_name = name.partition("@")[0]
    if kind_name in kinds and kind_name in KINDS and kind_name not in _NEVER_EMULATED:
        choice = choice_of(name, device, kinds)
        support = choice.kind.support(choice.device)
        if not support.native and (is_calibrated or not choice.kind.needs_calibration):
            return Chosen(choice, support.why)
    return Chosen(choose(name, device, is_calibrated, kinds, only)[0])


def _with_references(chosen: list[Chosen], device: torch.device, kinds: Mapping[str, Kind]) -> list[Chosen]:
    """fp32 in front of the variants of each device; what the user named keeps its name."""
    result: list[Chosen] = []
    for place in dict.fromkeys(variant.choice.device for variant in chosen):
        own = [variant for variant in chosen if variant.choice.device == place]
        references = [variant for variant in own if variant.choice.kind.name == REFERENCE]
        if not references:
            name = REFERENCE if place == device else f"{REFERENCE}@{place}"
            references = [Chosen(choose(name, device, kinds=kinds)[0])]
        result += references + [variant for variant in own if variant not in references]
    return result


def reference_of(variant: Examined, examined: Iterable[Examined]) -> Examined | None:
    """fp32 on the same device; None where it could not be made, or the model comes without it."""
    neighbours = (other for other in examined if other.variant.device == variant.variant.device)
    return next((other for other in neighbours if other.is_reference), None)


def try_out(variant: Variant) -> None:
    """Run one item. Raises ConfigError for a variant that was made but cannot run on its device."""
    model = variant.model
    item = model.task.example(model.facts, model.tokenizer, min(8, model.facts.max_tokens), 0)
    try:
        variant.run(variant.prepare([item]))
    except (RuntimeError, NotImplementedError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"variant {variant.name!r} does not run on {variant.device}: {first}") from error
