"""Where a variant departs from fp32, layer by layer.

Each figure holds what the layer inherited from those before it, so the error of a late layer is not its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError
from wattserve_server.inspection.data import Examples, batches
from wattserve_server.inspection.environment import describe
from wattserve_server.inspection.figures import Chart
from wattserve_server.inspection.hooks import layers_of, real_rows, watching
from wattserve_server.inspection.output import Report, figure, table
from wattserve_server.inspection.subject import REFERENCE, Examined, Subject, reference_of, try_out

OUTPUT = "(output)"
SHOWN_LAYERS = 15
_BATCH = 8


@dataclass
class ErrorSums:
    """Sums over all values of one layer, in double precision. Values that are not finite on either side are
    counted and left out of the rest."""

    values: int = 0
    non_finite: int = 0
    squared_error: float = 0.0
    max_abs_error: float = 0.0
    product: float = 0.0
    squared_reference: float = 0.0
    squared_other: float = 0.0

    def add(self, reference: torch.Tensor, other: torch.Tensor) -> None:
        """Two tensors of one shape."""
        expected, found = reference.double(), other.double()
        finite = torch.isfinite(expected) & torch.isfinite(found)
        self.non_finite += int((~finite).sum())
        expected, found = expected[finite], found[finite]
        self.values += expected.numel()
        if not expected.numel():
            return
        error = found - expected
        self.squared_error += float(error @ error)
        self.max_abs_error = max(self.max_abs_error, float(error.abs().max()))
        self.product += float(expected @ found)
        self.squared_reference += float(expected @ expected)
        self.squared_other += float(found @ found)

    @property
    def mse(self) -> float | None:
        return self.squared_error / self.values if self.values else None

    @property
    def cosine(self) -> float | None:
        """Of the two layers' values as one long vector each; None where one is all zeros."""
        norms = math.sqrt(self.squared_reference) * math.sqrt(self.squared_other)
        return min(1.0, max(-1.0, self.product / norms)) if norms else None

    @property
    def relative_error(self) -> float | None:
        """RMS of the error over RMS of the reference; None where the reference is all zeros."""
        if not self.squared_reference:
            return None
        return math.sqrt(self.squared_error / self.squared_reference)


@dataclass(frozen=True)
class LayerError:
    path: str
    kind: str
    sums: ErrorSums

    @property
    def badness(self) -> tuple[bool, float]:
        """For sorting: what is not finite is worse than any error."""
        return self.sums.non_finite > 0, self.sums.relative_error or 0.0

    @property
    def drawn(self) -> float:
        """For the figure: a layer with any value that is not finite is one that is not, whatever the rest of
        it amounts to; so is one with errors where fp32 is all zeros, which nothing can be relative to."""
        sums = self.sums
        if sums.non_finite:
            return math.nan
        return (sums.relative_error or 0.0) if sums.squared_reference or not sums.squared_error else math.inf

    def as_json(self) -> dict[str, Any]:
        sums = self.sums
        return {
            "layer": self.path,
            "type": self.kind,
            "mse": sums.mse,
            "cosine": sums.cosine,
            "max_abs_error": sums.max_abs_error if sums.values else None,
            "relative_error": sums.relative_error,
            "values": sums.values,
            "non_finite_values": sums.non_finite,
        }


def compare(reference: Variant, other: Variant, items: Sequence[Item]) -> tuple[list[LayerError], list[str]]:
    """Every watched layer in the model's order, the model's own output last; and the paths of the layers
    that the other variant does not run as modules of their own."""
    kinds = layers_of(reference.built.module)
    sums = {path: ErrorSums() for path in (*kinds, OUTPUT)}
    for _, batch in batches(reference.model, items, _BATCH):
        mask = reference.prepare(batch).inputs.get("attention_mask")
        expected = _outputs(reference, batch, kinds, mask)
        for path, tensors in _outputs(other, batch, kinds, mask).items():
            for ours, theirs in zip(expected[path], tensors, strict=False):
                if ours.shape == theirs.shape:
                    sums[path].add(ours, theirs)
    kinds[OUTPUT] = "output"
    unseen = [path for path, each in sums.items() if not each.values and not each.non_finite]
    errors = [LayerError(path, kinds[path], each) for path, each in sums.items() if path not in unseen]
    return errors, unseen


def _outputs(
    variant: Variant, items: Sequence[Item], kinds: dict[str, str], mask: torch.Tensor | None
) -> dict[str, list[torch.Tensor]]:
    """By path, what real tokens gave in each run of the layer."""
    found: dict[str, list[torch.Tensor]] = defaultdict(list)

    def seen(path: str, tensor: torch.Tensor) -> None:
        found[path].append(real_rows(tensor, mask, kinds[path]))

    with watching(variant.built.module, kinds, seen):
        rows = variant.run(variant.prepare(items))
    found[OUTPUT].append(torch.from_numpy(rows))
    return found


def inspect_layers(subject: Subject, examples: Examples, seed: int) -> tuple[Report, Chart]:
    """Raises ConfigError where there is nothing to hold against fp32, or no fp32."""
    if subject.no_reference:
        raise ConfigError(f"inspect layers: {subject.no_reference}")
    if all(each.choice.kind.name == REFERENCE for each in subject.chosen):
        raise ConfigError("inspect layers: there is nothing but fp32 to look at; name others with --variants")
    examined = list(subject.build())
    for each in examined:
        try_out(each, subject.model)
    body: list[dict[str, Any]] = []
    tables = []
    series: dict[str, list[float | None]] = {}
    names: list[str] = []
    notes = subject.notes(examined)
    for each in examined:
        if each.is_reference:
            continue
        reference = reference_of(each, examined)
        if reference is None:
            notes.append(f"{each.label}: fp32 could not be made on {each.variant.device} to hold it against.")
            continue
        errors, unseen = compare(reference.variant, each.variant, examples.items)
        worst = sorted(errors, key=lambda error: error.badness, reverse=True)
        body.append(
            each.as_json()
            | {
                "reference": reference.variant.name,
                "layers": [error.as_json() for error in worst],
                "layers_not_comparable": unseen,
            }
        )
        tables.append(_table(each, reference, worst))
        by_path = {error.path: error.drawn for error in errors}
        names = names or [*layers_of(reference.variant.built.module), OUTPUT]
        series[each.label] = [by_path.get(name) for name in names]
        if unseen:
            notes.append(
                f"{each.label}: {len(unseen)} layers are not modules of their own: {', '.join(unseen)}"
            )
    if not body:
        raise ConfigError("inspect layers: no variant could be held against fp32; see what was left out")
    if not examples.sha256:
        notes.append("Made-up examples: on real data the errors differ; give --dataset DIR.")
    report = Report(
        "inspect.layers",
        {
            "environment": describe([each.variant.device for each in examined], seed),
            "model": subject.as_json(),
            "data": examples.as_json(),
            "sorted_by": "relative_error, worst first; layers with non-finite values before all",
            "variants": body,
        },
        tables,
        [f"Data: {examples.origin}; padding does not count.", *notes],
    )
    title = f"{subject.model.name}: error of each layer's output against fp32"
    chart = Chart(title, "relative error (RMS of the error / RMS of fp32)", names, series, True)
    return report, chart


def _table(each: Examined, reference: Examined, worst: list[LayerError]) -> Any:
    shown = worst[:SHOWN_LAYERS]
    rest = f", the worst {len(shown)} of {len(worst)} layers" if len(worst) > len(shown) else ""
    made = table(
        f"{each.label} against {reference.variant.name} on {each.variant.device}{rest}",
        ("layer", "type"),
        ("relative error", "cosine", "MSE", "largest error", "not finite"),
    )
    for error in shown:
        sums = error.sums
        made.add_row(
            error.path, error.kind, figure(sums.relative_error), figure(sums.cosine, ".6f"),
            figure(sums.mse), figure(sums.max_abs_error), f"{sums.non_finite:,}",
        )  # fmt: skip
    return made
