"""What the pure half of the Open Inference Protocol is held against: a server in words, without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from wattserve_server.engine.engine import EngineLimits
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.roster import HostedVariant, LoadingRules, Readiness, Resident, Roster
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.service.prediction import Host

CPU = torch.device("cpu")
VARIANTS = {"fp32": CPU, "bf16": CPU, "int8@cpu": CPU}
NAME = "de@mo"  # a name may hold what stands before a variant
LABELS = ("negative", "neutral", "positive")


def ready(
    pixel_shape: tuple[int, ...] = (),
    has_tokenizer: bool = True,
    labels: tuple[str, ...] = LABELS,
    **rules: bool,
) -> Host:
    """A server of NAME, whose default is fp32, with all variants in memory; it takes three sequences of eight
    tokens at most, of a hundred that there are. rules: those of loading."""
    roster = Roster([Choice(name, KINDS[name.split("@")[0]], device) for name, device in VARIANTS.items()])
    for number, entry in enumerate(roster):
        load(entry, 1000 + number)
    facts = InputFacts(1, 0, pixel_shape) if pixel_shape else InputFacts(8, 100)
    task = SimpleNamespace(name="sequence-classification", output_name="logits", generates=False)
    config = SimpleNamespace(hidden_size=32)
    model = SimpleNamespace(name=NAME, facts=facts, task=task, labels=labels, config=config)
    engine: Any = SimpleNamespace(
        model=model,
        roster=roster,
        hosted=lambda name: roster.named(name or "fp32"),
        check_room=lambda *asked: None,
        default_variant="fp32",
        limits=EngineLimits({CPU: BatchLimits(32, 2048, 1_500_000)}, 1024, 3),
        loader=SimpleNamespace(rules=LoadingRules(**rules)),
    )
    return Host(engine, {}, cast(Any, object()) if has_tokenizer else None, cast(Any, None))


def load(entry: HostedVariant, size: int) -> None:
    variant: Any = SimpleNamespace(parameter_bytes=size)
    entry.state, entry.resident = Readiness.READY, Resident(variant)


def unload(entry: HostedVariant, state: Readiness = Readiness.UNLOADED, reason: str = "") -> None:
    entry.state, entry.reason, entry.resident = state, reason, None
