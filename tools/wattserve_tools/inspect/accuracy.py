"""What a precision costs in answers: accuracy, agreement with fp32, and how far the numbers moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from wattserve_common.dataset import Dataset
from wattserve_common.stats import mcnemar_p, wilson_interval
from wattserve_common.tensor_files import NO_LABEL
from wattserve_common.words import counted
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.rows import Examples, batches
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError
from wattserve_tools.inspect.report import Report, empty_table, environment, figure, share_words
from wattserve_tools.inspect.subject import Examined, Subject, reference_of, try_out

NO_ANSWER = -2  # the label of a row whose logits are not finite: no label at all, so never right

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """A proportion with Wilson's 95 % interval."""

    count: int
    of: int

    def as_json(self) -> dict[str, Any]:
        low, high = wilson_interval(self.count, self.of)
        return {"count": self.count, "of": self.of, "share": self.count / self.of, "low": low, "high": high}


@dataclass(frozen=True)
class McNemar:
    b: int  # rows that fp32 has right and the variant wrong
    c: int  # the other way round

    @property
    def p(self) -> float:
        """Of the exact two-sided test that both are equally likely."""
        return mcnemar_p(self.c, self.b)

    def as_json(self) -> dict[str, Any]:
        return {"fp32_right_variant_wrong": self.b, "fp32_wrong_variant_right": self.c, "p": self.p}


def answers(variant: Variant, examples: Examples) -> Rows:
    """[items, width], in the items' order."""
    order: list[int] = []
    rows: list[Rows] = []
    for positions, items in batches(variant.model, examples.items):
        order += positions
        rows.append(variant.run(variant.prepare(items)))
    return np.concatenate(rows)[np.argsort(order)]


def predicted(rows: Rows) -> Labels:
    """The label of each row, NO_ANSWER where a value is not finite."""
    labels: Labels = np.argmax(rows, axis=1).astype(np.int64)
    labels[~np.isfinite(rows).all(axis=1)] = NO_ANSWER
    return labels


def no_accuracy(model: LoadedModel, examples: Examples) -> str:
    """Why accuracy does not apply; empty when it does."""
    if model.has_random_weights:
        return "the model has random weights: accuracy means nothing"
    if not _predicts_labels(model):
        return f"the task {model.task.name} of this model predicts no single label"
    if (examples.labels == NO_LABEL).all():
        return "no row has a label"
    return ""


def _predicts_labels(model: LoadedModel) -> bool:
    problem = getattr(model.config, "problem_type", None)
    return len(model.labels) > 1 and problem not in ("multi_label_classification", "regression")


def score(rows: Rows, labels: Labels) -> Share:
    """Accuracy over the rows that have a label, of which there must be one."""
    labelled = labels != NO_LABEL
    return Share(int((predicted(rows) == labels)[labelled].sum()), int(labelled.sum()))


def mcnemar(reference: Rows, other: Rows, labels: Labels) -> McNemar:
    """Over the rows that have a label."""
    labelled = labels != NO_LABEL
    fp32_right = (predicted(reference) == labels)[labelled]
    right = (predicted(other) == labels)[labelled]
    return McNemar(int((fp32_right & ~right).sum()), int((~fp32_right & right).sum()))


def agreement(reference: Rows, other: Rows) -> Share:
    """Rows with the same label as fp32's; two rows without an answer do not agree."""
    ours, theirs = predicted(reference), predicted(other)
    return Share(int(((ours == theirs) & (ours != NO_ANSWER)).sum()), len(ours))


def deviation(reference: Rows, other: Rows) -> tuple[float | None, float | None]:
    """The largest and the RMS difference of the values that are finite in both; None without any."""
    error = other.astype(np.float64) - reference.astype(np.float64)
    error = error[np.isfinite(error)]
    if not error.size:
        return None, None
    return float(np.abs(error).max()), math.sqrt(float(np.mean(error**2)))


def cosines(reference: Rows, other: Rows) -> NDArray[np.float64]:
    """Of each pair of rows; rows that are not finite, or all zeros, are left out."""
    ours, theirs = reference.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        cosines = (ours * theirs).sum(axis=1) / norms
    kept: NDArray[np.float64] = cosines[np.isfinite(cosines)]
    return kept


def compared(model: LoadedModel, examples: Examples, reference: Rows | None, rows: Rows) -> dict[str, Any]:
    """One variant's figures as plain values; reference: fp32's rows, None for fp32 itself and
    for what there is no fp32 to hold against."""
    figures: dict[str, Any] = {
        "rows": len(rows),
        "rows_not_finite": int((~np.isfinite(rows).all(axis=1)).sum()),
        "accuracy": None if no_accuracy(model, examples) else score(rows, examples.labels).as_json(),
    }
    if reference is None:
        return figures
    figures["max_abs_error"], figures["rms_error"] = deviation(reference, rows)
    if model.labels:
        if _predicts_labels(model):
            figures["agreement"] = agreement(reference, rows).as_json()
        if figures["accuracy"]:
            figures["mcnemar"] = mcnemar(reference, rows, examples.labels).as_json()
    else:
        similar = cosines(reference, rows)
        figures["cosine_mean"] = float(similar.mean()) if similar.size else None
        figures["cosine_min"] = float(similar.min()) if similar.size else None
    return figures


def inspect_accuracy(subject: Subject, examples: Examples, calibration: Dataset | None) -> Report:
    """Raises ConfigError where there is neither an accuracy to tell nor an fp32 to agree with."""
    model = subject.model
    reason = no_accuracy(model, examples)
    if subject.no_reference and reason:
        raise ConfigError(f"inspect accuracy: {subject.no_reference}, and no accuracy: {reason}")
    examined = list(subject.build())
    rows: dict[str, Rows] = {}
    for variant in (entry.variant for entry in examined):
        if examples.sha256 and f"sha256 {examples.sha256[:12]}" in variant.built.detail:
            raise ConfigError(
                f"inspect accuracy: {variant.name} was calibrated on this very dataset: evaluate others"
            )
        try_out(variant)
        rows[variant.name] = answers(variant, examples)
    figures = []
    for other in examined:
        fp32 = None if other.is_reference else reference_of(other, examined)
        reference = None if fp32 is None else rows[fp32.variant.name]
        figures.append(compared(model, examples, reference, rows[other.variant.name]))
    unlabelled = int((examples.labels == NO_LABEL).sum())
    notes = [f"Data: {examples.origin}.", *_meanings(model, reason, subject.no_reference)]
    if subject.no_reference:
        notes.append(f"No agreement with fp32, and no errors: {subject.no_reference}.")
    if reason:
        notes.append(f"No accuracy: {reason}.")
    elif unlabelled:
        notes.append(
            f"{counted(unlabelled, 'row')} without a label: for agreement they count, for accuracy not."
        )
    scales = None
    if calibration is not None:
        used = subject.materials.activation_scales
        origin = used.origin if used else "not used: no chosen variant needs it"
        scales = {"origin": origin, "sha256": calibration.sha256}
        notes.append(f"Activation scales: {origin}; none of those rows is evaluated.")
    body = {
        "environment": environment([entry.variant.device for entry in examined], None),
        "model": subject.as_json(),
        "data": examples.as_json() | {"rows_without_label": unlabelled},
        "calibration": scales,
        "accuracy_reason": reason or None,
        "reference_reason": subject.no_reference or None,
        "variants": [other.as_json() | own for other, own in zip(examined, figures, strict=True)],
    }
    tables = [_table(subject, examined, figures)]
    return Report("inspect.accuracy", body, tables, notes + subject.notes(examined))


def _meanings(model: LoadedModel, no_accuracy: str, no_reference: str) -> list[str]:
    """The table's columns that do not speak for themselves."""
    if no_reference:
        return []
    notes = []
    if model.labels and not no_accuracy:
        notes.append(
            "lost / won: rows that fp32 has right and the variant wrong, and the other way round. p: of "
            "McNemar's exact test on them; below 0.05 the difference is unlikely to be chance."
        )
    return [*notes, "largest and RMS error: of the model's output, against fp32's for the same row."]


def _table(subject: Subject, examined: Sequence[Examined], figures: Sequence[dict[str, Any]]) -> Table:
    labels = bool(subject.model.labels)
    of_task = (
        ("accuracy %", "agrees with fp32 %", "lost / won", "p") if labels else ("cosine", "least cosine")
    )
    table = empty_table(
        f"Answers of {subject.model.name}" + ("; in brackets, Wilson's 95 % intervals" if labels else ""),
        ("variant", "device"),
        (*of_task, "largest error", "RMS error", "rows not finite"),
    )
    for other, own in zip(examined, figures, strict=True):
        if labels:
            cells = [share_words(own[key]) if own.get(key) else "-" for key in ("accuracy", "agreement")]
            test = own.get("mcnemar")
            if test:
                counts = f"{test['fp32_right_variant_wrong']} / {test['fp32_wrong_variant_right']}"
                cells += [counts, figure(test["p"])]
            else:
                cells += ["-", "-"]
        else:
            cells = [figure(own.get(key), ".7f") for key in ("cosine_mean", "cosine_min")]
        cells += [figure(own.get(key)) for key in ("max_abs_error", "rms_error")]
        table.add_row(other.label, str(other.variant.device), *cells, f"{own['rows_not_finite']:,}")
    return table
