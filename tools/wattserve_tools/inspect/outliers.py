"""Outlier features: inputs of linear layers whose magnitude exceeds a threshold (Dettmers et al. 2022,
LLM.int8(), where it is 6). They set the scale of their token, and leave few levels to everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from wattserve_server.engine.rows import Examples, batches
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.variant import Variant
from wattserve_tools.inspect.figures import LayerChart
from wattserve_tools.inspect.layers import BATCH, layers_of, real_rows, watching
from wattserve_tools.inspect.report import Report, empty_table, environment, figure
from wattserve_tools.inspect.subject import Subject

LARGEST_FEATURES = 16


@dataclass
class FeatureMaxima:
    """What one layer's inputs amounted to."""

    threshold: float
    maxima: torch.Tensor = field(default_factory=lambda: torch.zeros(1))  # of each feature's magnitude
    hits: torch.Tensor = field(default_factory=lambda: torch.zeros(1))  # tokens in which it was too large
    tokens: int = 0  # vectors seen, padding left out
    tokens_concerned: int = 0

    def add(self, vectors: torch.Tensor) -> None:
        """[vectors, features]"""
        if not len(vectors):
            return
        magnitudes = vectors.abs()
        above = magnitudes > self.threshold
        self.maxima = torch.maximum(self.maxima, magnitudes.amax(dim=0))
        self.hits = self.hits + above.sum(dim=0)
        self.tokens += len(vectors)
        self.tokens_concerned += int(above.any(dim=1).sum())

    def as_json(self, path: str) -> dict[str, Any]:
        count, features = int((self.hits > 0).sum()), len(self.maxima)
        largest = torch.argsort(self.maxima, descending=True)[: min(count, LARGEST_FEATURES)]
        return {
            "layer": path,
            "features": features,
            "outlier_features": count,
            "outlier_feature_share": count / features,
            "tokens": self.tokens,
            "tokens_with_outliers": self.tokens_concerned,
            "token_share": self.tokens_concerned / self.tokens,
            "max_magnitude": float(self.maxima.max()),
            "largest_features": [
                {
                    "feature": int(index),
                    "max_magnitude": float(self.maxima[index]),
                    "token_share": int(self.hits[index]) / self.tokens,
                }
                for index in largest
            ],
        }


def find_outliers(variant: Variant, items: Sequence[Item], threshold: float) -> list[dict[str, Any]]:
    """For each linear layer that ran, in the model's order; see docs/inspect.md for the keys."""
    paths = [path for path, kind in layers_of(variant.built.module).items() if kind == "linear"]
    layers = {path: FeatureMaxima(threshold) for path in paths}
    for _, batch in batches(variant.model, items, BATCH):
        prepared = variant.prepare(batch)
        mask = prepared.inputs.get("attention_mask")

        def seen(path: str, tensor: torch.Tensor, mask: torch.Tensor | None = mask) -> None:
            layers[path].add(real_rows(tensor, mask))

        with watching(variant.built.module, paths, seen, inputs=True):
            variant.run(prepared)
    return [maxima.as_json(path) for path, maxima in layers.items() if maxima.tokens]


def inspect_outliers(subject: Subject, examples: Examples, seed: int, threshold: float) -> Report:
    examined = list(subject.build())
    layers = find_outliers(examined[0].variant, examples.items, threshold)
    features = sum(layer["features"] for layer in layers)
    outliers = sum(layer["outlier_features"] for layer in layers)
    share = outliers / features if features else None
    table = empty_table(
        f"Inputs of the linear layers of {subject.model.name} in fp32: features above {threshold:g}",
        ("layer",),
        ("outlier features", "of", "share", "tokens concerned", "largest magnitude"),
    )
    for layer in layers:
        table.add_row(
            layer["layer"], f"{layer['outlier_features']:,}", f"{layer['features']:,}",
            f"{layer['outlier_feature_share']:.2%}", f"{layer['token_share']:.2%}",
            figure(layer["max_magnitude"]),
        )  # fmt: skip
    table.add_section()
    table.add_row(
        "all layers", f"{outliers:,}", f"{features:,}",
        figure(share, ".2%"), "-",
        figure(max((layer["max_magnitude"] for layer in layers), default=None)),
    )  # fmt: skip
    notes = [f"Data: {examples.origin}; padding does not count.", *subject.notes(examined)]
    if not examples.sha256:
        notes.append("Made-up examples: real data have other outliers; give --dataset DIR.")
    body = {
        "environment": environment([examined[0].variant.device], seed),
        "model": subject.as_json(),
        "data": examples.as_json(),
        "threshold": threshold,
        "outlier_features": outliers,
        "features": features,
        "outlier_feature_share": share,
        "layers": layers,
    }
    chart = LayerChart(
        f"{subject.model.name}: largest magnitude of each linear layer's input (threshold {threshold:g})",
        "largest magnitude",
        [layer["layer"] for layer in layers],
        {"fp32": [layer["max_magnitude"] for layer in layers]},
        False,
        limit=threshold,
    )
    return Report("inspect.outliers", body, [table], notes, chart)
