"""What a precision costs in answers: accuracy, agreement with fp32, and how far the numbers moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_loadgen.data.tensor_files import NO_LABEL
from wattserve_loadgen.figures.stats import wilson_interval
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError
from wattserve_server.inspection.data import Examples, batches
from wattserve_server.inspection.environment import describe
from wattserve_server.inspection.output import Report, figure, table
from wattserve_server.inspection.subject import Examined, Subject, reference_of, try_out

NO_ANSWER = -2
"""The label of a row whose logits are not finite: no label at all, so never right."""

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

    def __str__(self) -> str:
        low, high = wilson_interval(self.count, self.of)
        return f"{100 * self.count / self.of:.2f} [{100 * low:.2f}, {100 * high:.2f}]"


@dataclass(frozen=True)
class McNemar:
    """b: rows that fp32 has right and the variant wrong; c: the other way round. p: of the exact two-sided
    test that both are equally likely."""

    b: int
    c: int

    @property
    def p(self) -> float:
        """Twice the binomial tail of min(b, c) among b + c tosses of a fair coin, 1 at the most."""
        n = self.b + self.c
        term, tail = 1, 0
        for k in range(min(self.b, self.c) + 1):
            tail += term
            term = term * (n - k) // (k + 1)
        return min(1.0, tail / 2 ** (n - 1)) if n else 1.0

    def as_json(self) -> dict[str, Any]:
        return {"fp32_right_variant_wrong": self.b, "fp32_wrong_variant_right": self.c, "p": self.p}


def answers(variant: Variant, examples: Examples) -> Rows:
    """[items, width], in the items' order."""
    found: Rows | None = None
    for positions, items in batches(variant.model, examples.items):
        rows = variant.run(variant.prepare(items))
        if found is None:
            found = np.empty((len(examples.items), rows.shape[1]), dtype=np.float32)
        found[positions] = rows
    assert found is not None  # a dataset has rows
    return found


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
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    regresses = getattr(model.config, "problem_type", None) == "regression"
    return len(model.labels) > 1 and not several and not regresses


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
        found = (ours * theirs).sum(axis=1) / norms
    kept: NDArray[np.float64] = found[np.isfinite(found)]
    return kept


def compared(model: LoadedModel, examples: Examples, reference: Rows | None, rows: Rows) -> dict[str, Any]:
    """One variant's figures as plain values; reference: fp32's rows, None for fp32 itself and
    for what there is no fp32 to hold against."""
    found: dict[str, Any] = {
        "rows": len(rows),
        "rows_not_finite": int((~np.isfinite(rows).all(axis=1)).sum()),
        "accuracy": None if no_accuracy(model, examples) else score(rows, examples.labels).as_json(),
    }
    if reference is None:
        return found
    largest, rms = deviation(reference, rows)
    found["max_abs_error"], found["rms_error"] = largest, rms
    if model.labels:
        if _predicts_labels(model):
            found["agreement"] = agreement(reference, rows).as_json()
        if found["accuracy"]:
            found["mcnemar"] = mcnemar(reference, rows, examples.labels).as_json()
    else:
        similar = cosines(reference, rows)
        found["cosine_mean"] = float(similar.mean()) if similar.size else None
        found["cosine_min"] = float(similar.min()) if similar.size else None
    return found


def inspect_accuracy(subject: Subject, examples: Examples, calibration: dict[str, Any] | None) -> Report:
    """Raises ConfigError where there is neither an accuracy to tell nor an fp32 to agree with."""
    model = subject.model
    reason = no_accuracy(model, examples)
    if subject.no_reference and reason:
        raise ConfigError(f"inspect accuracy: {subject.no_reference}, and no accuracy: {reason}")
    examined = list(subject.build())
    rows: dict[str, Rows] = {}
    for each in examined:
        if examples.sha256 and f"sha256 {examples.sha256[:12]}" in each.variant.built.detail:
            raise ConfigError(
                f"inspect accuracy: {each.variant.name} was calibrated on this very dataset: evaluate others"
            )
        try_out(each, model)
        rows[each.variant.name] = answers(each.variant, examples)
    figures = []
    for each in examined:
        fp32 = None if each.is_reference else reference_of(each, examined)
        reference = None if fp32 is None else rows[fp32.variant.name]
        figures.append(compared(model, examples, reference, rows[each.variant.name]))
    unlabelled = int((examples.labels == NO_LABEL).sum())
    notes = [f"Data: {examples.origin}."]
    if subject.no_reference:
        notes.append(f"No agreement with fp32, and no errors: {subject.no_reference}.")
    if reason:
        notes.append(f"No accuracy: {reason}.")
    elif unlabelled:
        notes.append(f"{unlabelled} rows have no label: they count for agreement, not for accuracy.")
    if calibration:
        notes.append(f"Activation scales: {calibration['origin']}; none of those rows is evaluated.")
    body = {
        "environment": describe([each.variant.device for each in examined], None),
        "model": subject.as_json(),
        "data": examples.as_json() | {"rows_without_label": unlabelled},
        "calibration": calibration,
        "accuracy_reason": reason or None,
        "reference_reason": subject.no_reference or None,
        "variants": [each.as_json() | found for each, found in zip(examined, figures, strict=True)],
    }
    shown = [_table(subject, examined, figures)]
    return Report("inspect.accuracy", body, shown, notes + subject.notes(examined))


def _table(subject: Subject, examined: Sequence[Examined], figures: Sequence[dict[str, Any]]) -> Any:
    labels = bool(subject.model.labels)
    of_task = (
        ("accuracy %", "agrees with fp32 %", "lost / won", "p") if labels else ("cosine", "least cosine")
    )
    made = table(
        f"Answers of {subject.model.name}" + ("; in brackets, Wilson's 95 % intervals" if labels else ""),
        ("variant", "device"),
        (*of_task, "largest error", "RMS error", "rows not finite"),
    )
    for each, found in zip(examined, figures, strict=True):
        if labels:
            test = found.get("mcnemar")
            own = [_share(found["accuracy"]), _share(found.get("agreement"))]
            own += (
                [
                    f"{test['fp32_right_variant_wrong']} / {test['fp32_wrong_variant_right']}",
                    figure(test["p"]),
                ]
                if test
                else ["-", "-"]
            )
        else:
            own = [figure(found.get(key), ".7f") for key in ("cosine_mean", "cosine_min")]
        errors = [figure(found.get(key)) for key in ("max_abs_error", "rms_error")]
        made.add_row(each.label, str(each.variant.device), *own, *errors, f"{found['rows_not_finite']:,}")
    return made


def _share(found: dict[str, Any] | None) -> str:
    return "-" if found is None else str(Share(found["count"], found["of"]))
