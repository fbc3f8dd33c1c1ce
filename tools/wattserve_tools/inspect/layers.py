"""Watching a model's layers at work, and where a variant departs from fp32, layer by layer.

Each figure holds what the layer inherited from those before it, so the error of a late layer is not its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import nn

from wattserve_server.engine.rows import Examples, batches
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError
from wattserve_tools.inspect.figures import LayerChart
from wattserve_tools.inspect.report import Report, empty_table, environment, figure
from wattserve_tools.inspect.subject import REFERENCE, Examined, Subject, reference_of, try_out

OUTPUT = "(output)"
SHOWN_LAYERS = 15
BATCH = 8  # rows that run at a time while layers are watched

# Takes a layer's path and a tensor; called once for every time that the layer runs.
Seen = Callable[[str, torch.Tensor], None]


def layers_of(module: nn.Module) -> dict[str, str]:
    """What is watched, by path, in the model's order: ``linear``, ``conv``, or ``block`` for a member of a
    list of larger parts, which is what a transformer's layers are."""
    kinds: dict[str, str] = {}
    for path, part in module.named_modules():
        # transformers' Conv1D is a linear layer with its weight transposed
        if isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D":
            kinds[path] = "linear"
        elif isinstance(part, nn.modules.conv._ConvNd):
            kinds[path] = "conv"
        elif _is_block(module, path, part):
            kinds[path] = "block"
    return kinds


def _is_block(module: nn.Module, path: str, part: nn.Module) -> bool:
    above, _, _ = path.rpartition(".")
    in_a_list = bool(path) and isinstance(module.get_submodule(above), nn.ModuleList)
    return in_a_list and next(part.children(), None) is not None


@contextmanager
def watching(
    module: nn.Module, paths: Iterable[str], seen: Seen, *, inputs: bool = False
) -> Iterator[list[str]]:
    """Calls `seen` with each output of the layers (or their first input), on the host as fp32. Gives the
    paths at which the module has nothing."""
    missing = []
    with ExitStack() as hooks:
        for path in paths:
            try:
                part = module.get_submodule(path)
            except AttributeError:
                missing.append(path)
            else:
                hooks.callback(_watch(part, path, seen, inputs).remove)
        yield missing


def _watch(part: nn.Module, path: str, seen: Seen, inputs: bool) -> Any:
    def after(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        value = arguments[0] if inputs else output
        while isinstance(value, (tuple, list)):
            value = value[0]
        if isinstance(value, torch.Tensor):
            seen(path, value.detach().float().cpu())

    return part.register_forward_hook(after)


def real_rows(tensor: torch.Tensor, mask: torch.Tensor | None, kind: str = "linear") -> torch.Tensor:
    """[vectors, features]: a layer's tensor without the vectors that belong to padding.

    mask: [sequences, tokens], ones for real tokens; None where nothing is padded. A tensor without a token
    dimension, such as that of a classifier's head, is real as a whole.
    """
    if kind == "conv":
        return tensor.movedim(1, -1).reshape(-1, tensor.shape[1])
    if mask is not None:
        real = mask.bool().cpu()
        if tensor.ndim >= 3 and tensor.shape[:2] == real.shape:
            return tensor[real].reshape(-1, tensor.shape[-1])
        if tensor.ndim == 2 and tensor.shape[0] == real.numel():  # packed: one row per token
            return tensor[real.reshape(-1)]
    return tensor.reshape(-1, tensor.shape[-1])


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
        ours, theirs = reference.double(), other.double()
        finite = torch.isfinite(ours) & torch.isfinite(theirs)
        self.non_finite += int((~finite).sum())
        ours, theirs = ours[finite], theirs[finite]
        self.values += ours.numel()
        if not ours.numel():
            return
        error = theirs - ours
        self.squared_error += float(error @ error)
        self.max_abs_error = max(self.max_abs_error, float(error.abs().max()))
        self.product += float(ours @ theirs)
        self.squared_reference += float(ours @ ours)
        self.squared_other += float(theirs @ theirs)

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
    for _, batch in batches(reference.model, items, BATCH):
        mask = reference.prepare(batch).inputs.get("attention_mask")
        expected = _outputs(reference, batch, kinds, mask)
        for path, tensors in _outputs(other, batch, kinds, mask).items():
            for ours, theirs in zip(expected[path], tensors, strict=False):
                if ours.shape == theirs.shape:
                    sums[path].add(ours, theirs)
    kinds[OUTPUT] = "output"
    unseen = [path for path, sum_ in sums.items() if not sum_.values and not sum_.non_finite]
    errors = [LayerError(path, kinds[path], sum_) for path, sum_ in sums.items() if path not in unseen]
    return errors, unseen


def _outputs(
    variant: Variant, items: Sequence[Item], kinds: dict[str, str], mask: torch.Tensor | None
) -> dict[str, list[torch.Tensor]]:
    """By path, what real tokens gave in each run of the layer."""
    outputs: dict[str, list[torch.Tensor]] = defaultdict(list)

    def seen(path: str, tensor: torch.Tensor) -> None:
        outputs[path].append(real_rows(tensor, mask, kinds[path]))

    with watching(variant.built.module, kinds, seen):
        rows = variant.run(variant.prepare(items))
    outputs[OUTPUT].append(torch.from_numpy(rows))
    return outputs


def inspect_layers(subject: Subject, examples: Examples, seed: int) -> Report:
    """Raises ConfigError where there is nothing to hold against fp32, or no fp32."""
    if subject.no_reference:
        raise ConfigError(f"inspect layers: {subject.no_reference}")
    if all(chosen.choice.kind.name == REFERENCE for chosen in subject.chosen):
        raise ConfigError("inspect layers: there is nothing but fp32 to look at; name others with --variants")
    examined = list(subject.build())
    for entry in examined:
        try_out(entry.variant)
    body: list[dict[str, Any]] = []
    tables = []
    series: dict[str, list[float | None]] = {}
    names: list[str] = []
    notes = [f"Data: {examples.origin}; padding does not count.", *subject.notes(examined)]
    for other in examined:
        if other.is_reference:
            continue
        reference = reference_of(other, examined)
        if reference is None:
            notes.append(
                f"{other.label}: fp32 could not be made on {other.variant.device} to hold it against."
            )
            continue
        errors, unseen = compare(reference.variant, other.variant, examples.items)
        worst = sorted(errors, key=lambda error: error.badness, reverse=True)
        body.append(
            other.as_json()
            | {
                "reference": reference.variant.name,
                "layers": [error.as_json() for error in worst],
                "layers_not_comparable": unseen,
            }
        )
        tables.append(_table(other, reference, worst))
        by_path = {error.path: error.drawn for error in errors}
        names = names or [*layers_of(reference.variant.built.module), OUTPUT]
        series[other.label] = [by_path.get(name) for name in names]
        if unseen:
            notes.append(f"{other.label}: no modules of their own, so not compared: {', '.join(unseen)}")
    if not body:
        raise ConfigError("inspect layers: no variant could be held against fp32; see what was left out")
    if not examples.sha256:
        notes.append("Made-up examples: on real data the errors differ; give --dataset DIR.")
    title = f"{subject.model.name}: error of each layer's output against fp32"
    return Report(
        "inspect.layers",
        {
            "environment": environment([entry.variant.device for entry in examined], seed),
            "model": subject.as_json(),
            "data": examples.as_json(),
            "sorted_by": "relative_error, worst first; layers with non-finite values before all",
            "variants": body,
        },
        tables,
        notes,
        LayerChart(
            title, "relative error (RMS of the error / RMS of fp32)", names, series, is_logarithmic=True
        ),
    )


def _table(other: Examined, reference: Examined, worst: list[LayerError]) -> Table:
    shown = worst[:SHOWN_LAYERS]
    rest = f", the worst {len(shown)} of {len(worst)} layers" if len(worst) > len(shown) else ""
    table = empty_table(
        f"{other.label} against {reference.variant.name} on {other.variant.device}{rest}",
        ("layer", "type"),
        ("relative error", "cosine", "MSE", "largest error", "not finite"),
    )
    for error in shown:
        sums = error.sums
        table.add_row(
            error.path, error.kind, figure(sums.relative_error), figure(sums.cosine, ".6f"),
            figure(sums.mse), figure(sums.max_abs_error), f"{sums.non_finite:,}",
        )  # fmt: skip
    return table
