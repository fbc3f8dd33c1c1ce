"""What each variant's weights take: by arithmetic, and as measured."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from wattserve_server.engine.variants.port import Built, Kind
from wattserve_server.engine.weights import tensor_bytes
from wattserve_tools.inspect.report import Report, empty_table, environment, figure
from wattserve_tools.inspect.subject import Examined, Subject, reference_of

_STATM = Path("/proc/self/statm")
_SCALE_BYTES = 4  # of an fp32 scale
_PRECISION = re.compile(r"[a-z]+(\d+)")
_EIGHT_BITS = re.compile(r"\b(int|fp)8\b")


def stored_bits(weights: str, rest_bytes: int) -> int:
    """Bits of one weight of a converted layer, from how its kind says that it is stored: 24 for
    ``int8 and fp16``. Words that are no precisions mean the dtype of everything else: `rest_bytes`."""
    parts = [_PRECISION.fullmatch(part) for part in weights.split(" and ")]
    bits = [int(part[1]) for part in parts if part is not None]
    return sum(bits) if len(bits) == len(parts) else 8 * rest_bytes


def ideal_bytes(kind: Kind, built: Built, parameters: int) -> int:
    """The rule of thumb: every parameter at the bits of the kind's weights, and nothing else."""
    return parameters * stored_bits(kind.weights, rest_bytes(built)) // 8


def theoretical_bytes(source: nn.Module, kind: Kind, built: Built) -> int:
    """What the weights should take: those of the converted layers at their bits, with one fp32 scale per
    output channel where they are quantised (and one for the layer's input where that is calibrated); all
    else at the bytes of the module's other parameters. source: the model in fp32."""
    rest = rest_bytes(built)
    bits = stored_bits(kind.weights, rest)
    is_quantised = _EIGHT_BITS.search(kind.weights) is not None and bits != 8 * rest
    converted = set(built.converted)
    total, counted = 0, set()
    for path, part in source.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) in counted:
                continue
            counted.add(id(parameter))
            if path in converted and name == "weight":
                total += parameter.numel() * bits // 8
                if is_quantised:
                    total += _SCALE_BYTES * (parameter.shape[0] + kind.needs_calibration)
            else:
                total += parameter.numel() * rest
    return total


def rest_bytes(built: Built) -> int:
    """Bytes of a value that is not converted: that of most of the module's other parameters."""
    inside = tuple(f"{path}." for path in built.converted)
    counts: dict[int, int] = {}
    for name, parameter in built.module.named_parameters():
        if not name.startswith(inside):
            size = parameter.element_size()
            counts[size] = counts.get(size, 0) + parameter.numel()
    return max(counts, key=counts.__getitem__, default=4)


def process_bytes() -> int | None:
    """Resident memory of this process; None where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _growth(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def inspect_memory(subject: Subject) -> Report:
    """Makes the variants one after the other and keeps them, as the server does."""
    source = subject.model.weights.module
    is_source = not subject.model.weights.made  # of a model that comes as a variant it has no numbers
    examined: list[Examined] = []
    rows: list[dict[str, Any]] = []
    for device in {chosen.choice.device for chosen in subject.chosen}:
        if device.type == "cuda":
            torch.zeros(1, device=device)  # so that CUDA's own context is no variant's
    gc.collect()
    modules: list[nn.Module] = []
    process_before, cuda_before = process_bytes(), _cuda_bytes(subject)
    for entry in subject.build():
        gc.collect()
        process_after, cuda_after = process_bytes(), _cuda_bytes(subject)
        device, kind, built = entry.variant.device, entry.variant.kind, entry.variant.built
        size, parameters = tensor_bytes(built.module), subject.model.parameters
        row = {
            "weights": kind.weights,
            "ideal_bytes": ideal_bytes(kind, built, parameters),
            "theoretical_bytes": theoretical_bytes(source, kind, built),
            "tensor_bytes": size,
            "bits_per_parameter": 8 * size / parameters,
            "additional_bytes": tensor_bytes(*modules, built.module) - tensor_bytes(*modules),
            "process_growth_bytes": _growth(process_after, process_before),
            "cuda_growth_bytes": _growth(cuda_after.get(device), cuda_before.get(device)),
        }
        modules.append(built.module)
        examined.append(entry)
        rows.append(entry.as_json() | row)
        process_before, cuda_before = process_after, cuda_after
    sizes = {entry.variant.name: row["tensor_bytes"] for entry, row in zip(examined, rows, strict=True)}
    for entry, row in zip(examined, rows, strict=True):
        fp32 = reference_of(entry, examined)
        row["reduction_against_fp32"] = sizes[fp32.variant.name] / row["tensor_bytes"] if fp32 else None
    alone, together = sum(sizes.values()), tensor_bytes(*modules)
    body = {
        "environment": environment([entry.variant.device for entry in examined], None),
        "model": subject.as_json(),
        "source_tensor_bytes": tensor_bytes(source) if is_source else None,
        "reference_reason": subject.no_reference or None,
        "all_variants_alone_bytes": alone,
        "all_variants_together_bytes": together,
        "shared_bytes": alone - together,
        "variants": rows,
    }
    notes = [
        f"{subject.model.parameters:,} parameters. All variants together take {together / 1e6:,.2f} MB, "
        f"{(alone - together) / 1e6:,.2f} MB less than each by itself: what they do not convert, they share.",
        "ideal: every parameter at the bits of the variant's weights. theory: the converted layers at those "
        "bits, with their scales; all else at its own. tensors: what the variant's tensors really hold, from "
        "which bits/parameter follows. against fp32: fp32's tensors over these.",
        "added: what it takes beside the variants above it, with which it shares the rest. process, CUDA: by "
        "how much resident memory and CUDA's allocations grew as it was made, with what allocators keep.",
        *subject.notes(examined),
    ]
    if is_source:
        notes.insert(
            1,
            "The process holds the fp32 source besides; fp32 on the CPU shares its memory and adds nothing.",
        )
    if subject.no_reference:
        notes.append(f"Nothing to compare with: {subject.no_reference}.")
    return Report("inspect.memory", body, [_table(subject, examined, rows)], notes)


def _cuda_bytes(subject: Subject) -> dict[torch.device, int]:
    """Allocated, by device."""
    devices = {chosen.choice.device for chosen in subject.chosen}
    return {device: torch.cuda.memory_allocated(device) for device in devices if device.type == "cuda"}


def _table(subject: Subject, examined: list[Examined], rows: list[dict[str, Any]]) -> Table:
    table = empty_table(
        f"Memory of the variants of {subject.model.name}, in MB (a million bytes)",
        ("variant", "device", "weights"),
        ("ideal", "theory", "tensors", "bits/parameter", "against fp32", "added", "process", "CUDA"),
    )
    for entry, row in zip(examined, rows, strict=True):
        table.add_row(
            entry.label, str(entry.variant.device), row["weights"], _mb(row["ideal_bytes"]),
            _mb(row["theoretical_bytes"]), _mb(row["tensor_bytes"]), f"{row['bits_per_parameter']:.2f}",
            figure(row["reduction_against_fp32"], ".2f", "x"), _mb(row["additional_bytes"]),
            _mb(row["process_growth_bytes"]), _mb(row["cuda_growth_bytes"]),
        )  # fmt: skip
    return table


def _mb(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.2f}"
