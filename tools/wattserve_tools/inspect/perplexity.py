"""What a precision does to a language model: how well it foresees a text, and how far that is from fp32."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from wattserve_common.words import counted
from wattserve_loadgen.figures.perplexity import Scored, measure_perplexity
from wattserve_loadgen.model.results import Perplexity
from wattserve_server.config import ServerConfig
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError
from wattserve_tools.inspect.blocks import run_block
from wattserve_tools.inspect.joules import (
    BELOW_IDLE,
    IDLE_UNKNOWN,
    BusyClock,
    Joulemeter,
    Meters,
    meters_as_json,
    open_meters,
)
from wattserve_tools.inspect.report import Report, empty_table, environment, figure
from wattserve_tools.inspect.subject import Examined, Subject, reference_of
from wattserve_tools.inspect.texts import Document, Span

MOST_METERED = 64  # windows: of so many the joules are measured, over and over

LogProbs = NDArray[np.float64]  # [tokens, vocabulary]


@dataclass(frozen=True)
class Reading:
    """How a text is read."""

    origin: str  # of the text, in words
    documents: list[Document]
    spans: list[Span]
    window: int  # tokens
    stride: int

    @property
    def foreseen(self) -> int:
        return sum(span.foreseen for span in self.spans)


@dataclass
class _Heard:
    """What one variant said so far; of each document."""

    nats: NDArray[np.float64]
    kl_nats: float = 0.0  # summed over tokens: of fp32's distribution from the variant's
    agreeing: int = 0  # tokens whose likeliest is fp32's
    energy: dict[str, Any] = field(default_factory=dict)


def log_probabilities(variant: Variant, span: Span) -> LogProbs:
    """Of what follows each of the tokens before those that the span foresees."""
    first = len(span.token_ids) - span.foreseen - 1
    logits = _logits(variant, span.token_ids[:-1], np.arange(first, len(span.token_ids) - 1)).double()
    return torch.log_softmax(logits, dim=-1).numpy()


def _logits(variant: Variant, token_ids: NDArray[np.int64], kept: NDArray[np.int64]) -> torch.Tensor:
    """[kept, vocabulary], on the host. Also one token would do: what is timed runs the same."""
    inputs = {
        "input_ids": torch.from_numpy(token_ids)[None],
        "position_ids": torch.arange(len(token_ids))[None],
        "logits_to_keep": torch.from_numpy(kept),
    }
    with variant.at_work():
        on_device = {name: tensor.to(variant.device) for name, tensor in inputs.items()}
        logits: torch.Tensor = variant.built.module(**on_device, use_cache=False).logits[0].float().cpu()
    return logits


def inspect_perplexity(config: ServerConfig, subject: Subject, reading: Reading) -> Report:
    """Raises ConfigError for a model that writes no tokens, and MeterError for a meter that was asked for and
    is not there."""
    if not subject.model.task.generates:
        raise ConfigError(f"inspect perplexity: {subject.model.name} does the task {subject.model.task.name}")
    examined = list(subject.build())
    clocks = {entry.variant.device: BusyClock() for entry in examined}
    machine = environment(list(clocks), None)
    heard = {entry.variant.name: _Heard(np.zeros(len(reading.documents))) for entry in examined}
    with ExitStack() as undo:
        meters = open_meters(config, clocks, subject.device, undo)
        for entry in examined:
            device = entry.variant.device
            heard[entry.variant.name].energy = _energy(entry.variant, reading, clocks[device], meters[device])
    for span in reading.spans:
        _read(examined, span, heard)
    return _report(subject, examined, heard, reading, machine, meters)


def _read(examined: list[Examined], span: Span, heard: dict[str, _Heard]) -> None:
    """One window by every variant: fp32 of each device first, which the others are held against."""
    truth = span.token_ids[-span.foreseen :]
    references: dict[str, LogProbs] = {}
    for entry in sorted(examined, key=lambda entry: not entry.is_reference):
        told, own = log_probabilities(entry.variant, span), heard[entry.variant.name]
        own.nats[span.document] -= told[np.arange(span.foreseen), truth].sum()
        if entry.is_reference:
            references[entry.variant.name] = told
        fp32 = reference_of(entry, examined)
        if fp32 is not None:
            base = references[fp32.variant.name]
            own.kl_nats += float((np.exp(base) * (base - told)).sum())
            own.agreeing += int((base.argmax(axis=1) == told.argmax(axis=1)).sum())


def _energy(variant: Variant, reading: Reading, busy: BusyClock, meter: Joulemeter | str) -> dict[str, Any]:
    """Active joules of reading a token of the text, beside what is foreseen twice."""
    spans = reading.spans[:MOST_METERED]
    tokens = sum(len(span.token_ids) - 1 for span in spans) / len(spans)  # of a run

    def run(number: int) -> int:
        begun_ns = time.perf_counter_ns()
        span = spans[number]
        _logits(variant, span.token_ids[:-1], np.arange(len(span.token_ids) - 2, len(span.token_ids) - 1))
        ns = time.perf_counter_ns() - begun_ns
        busy.add(ns)
        return ns

    block = run_block(run, range(len(spans)), meter)
    idle_watts = meter.idle_watts if isinstance(meter, Joulemeter) else None
    reason = block.reason or (IDLE_UNKNOWN if idle_watts is None else "")
    uj = None if block.span is None or idle_watts is None else block.active_uj(idle_watts)
    if uj is not None and uj <= 0:
        uj, reason = None, BELOW_IDLE
    computed = sum(len(span.token_ids) - 1 for span in reading.spans)
    return {
        "active_uj_per_token": None if uj is None else uj / tokens,
        "active_uj": None if uj is None else uj / tokens * computed,
        "tokens_computed": computed,
        "quality": meter.source.quality.value if isinstance(meter, Joulemeter) and uj is not None else None,
        "reason": reason or None,
    }


def _report(
    subject: Subject,
    examined: list[Examined],
    heard: dict[str, _Heard],
    reading: Reading,
    machine: dict[str, Any],
    meters: Meters,
) -> Report:
    tokens = [0] * len(reading.documents)
    for span in reading.spans:
        tokens[span.document] += span.foreseen
    sizes = [document.bytes for document in reading.documents]
    baseline = next((entry.variant.name for entry in examined if entry.is_reference), "")
    by_token, by_byte = (
        measure_perplexity({name: Scored(own.nats.tolist(), counts) for name, own in heard.items()}, baseline)
        for counts in (tokens, sizes)
    )
    rows = []
    for entry in examined:
        name = entry.variant.name
        own, fp32 = heard[name], reference_of(entry, examined)
        is_compared = fp32 is not None and not entry.is_reference
        rows.append(
            entry.as_json()
            | {
                "tensor_bytes": entry.variant.parameter_bytes,
                **_by_token(by_token[name]),
                **_by_byte(by_byte[name]),
                "kl_nats_per_token": own.kl_nats / reading.foreseen if is_compared else None,
                "top1_agreement": own.agreeing / reading.foreseen if is_compared else None,
                "energy": own.energy,
            }
        )
    body = {
        "environment": machine,
        "model": subject.as_json(),
        "text": {
            "origin": reading.origin,
            "documents": len(reading.documents),
            "bytes": sum(sizes),
            "tokens_foreseen": reading.foreseen,
            "window": reading.window,
            "stride": reading.stride,
        },
        "meters": meters_as_json(meters),
        "reference_reason": subject.no_reference or None,
        "variants": rows,
    }
    table = _table(subject, examined, rows)
    return Report("inspect.perplexity", body, [table], _notes(subject, examined, body))


def _by_token(told: Perplexity) -> dict[str, Any]:
    names = ("low", "high", "difference", "difference_low", "difference_high")
    nats = {name: getattr(told, name) for name in names}
    return {
        "perplexity": told.perplexity,
        "perplexity_low": None if told.low is None else math.exp(told.low),
        "perplexity_high": None if told.high is None else math.exp(told.high),
        "nats_per_token": told.nats_per_token,
        **{f"nats_per_token_{name}": value for name, value in nats.items()},
    }


def _by_byte(told: Perplexity) -> dict[str, Any]:
    def bits(nats: float | None) -> float | None:
        return None if nats is None else nats / math.log(2)

    return {
        "bits_per_byte": bits(told.nats_per_token),
        "bits_per_byte_low": bits(told.low),
        "bits_per_byte_high": bits(told.high),
    }


_FIGURES = (
    "perplexity",
    "bits per byte",
    "nats over fp32",
    "KL, nats",
    "likeliest alike",
    "mJ/token",
    "MB",
)


def _table(subject: Subject, examined: list[Examined], rows: list[dict[str, Any]]) -> Table:
    """Below a figure stands its 95 % interval."""
    table = empty_table(f"perplexity of {subject.model.name}", ["variant"], _FIGURES)
    for entry, row in zip(examined, rows, strict=True):
        agreement, uj = row["top1_agreement"], row["energy"]["active_uj_per_token"]
        table.add_row(
            entry.label,
            _cell(row, "perplexity", ".4g"),
            _cell(row, "bits_per_byte", ".4f"),
            _cell(row, "nats_per_token_difference", "+.5f"),
            figure(row["kl_nats_per_token"], ".2e"),
            figure(None if agreement is None else 100 * agreement, ".2f", " %"),
            figure(None if uj is None else uj / 1e3),
            figure(row["tensor_bytes"] / 1e6, ".1f"),
        )
    return table


def _cell(row: dict[str, Any], name: str, form: str) -> str:
    text, low, high = figure(row[name], form), row[f"{name}_low"], row[f"{name}_high"]
    return text if low is None or high is None else f"{text}\n{low:{form}} to {high:{form}}"


def _notes(subject: Subject, examined: list[Examined], body: dict[str, Any]) -> list[str]:
    text = body["text"]
    notes = [
        f"Text: {text['origin']}, {counted(text['documents'], 'document')} of {text['bytes']:,} bytes;"
        f" {text['tokens_foreseen']:,} tokens were foreseen, in windows of {text['window']} that move on by"
        f" {text['stride']}.",
        "Perplexity is of this model's own tokens: compare bits per byte with another model's. Intervals are"
        " a bootstrap over documents; differences from fp32 are paired by document.",
        "KL is of fp32's distribution from the variant's; both are means over tokens.",
    ]
    if text["documents"] == 1:
        notes.append("One document has no intervals: documents are the sample. Separate them by empty lines.")
    for name, meter in body["meters"].items():
        if meter.get("source") is None or meter["reason"]:
            notes.append(f"No joules on {name}: {meter['reason']}.")
        else:
            notes.append(f"Joules on {name} are active ones, {meter['quality']} ({meter['source']}).")
    reasons = {row["energy"]["reason"] for row in body["variants"] if row["energy"]["reason"]}
    told = {meter["reason"] for meter in body["meters"].values()}
    notes += [f"Joules are missing where {reason}." for reason in sorted(reasons - told)]
    if subject.no_reference:
        notes.append(f"Nothing is held against fp32: {subject.no_reference}.")
    return notes + subject.notes(examined)
