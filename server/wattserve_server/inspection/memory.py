"""What each variant's weights take: by arithmetic, and as measured."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wattserve_server.engine.variants.port import Built, Kind
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.weights import tensor_bytes
from wattserve_server.inspection.environment import describe
from wattserve_server.inspection.output import Report, table
from wattserve_server.inspection.subject import Examined, Subject, reference_of

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


def _cuda_bytes(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def _growth(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def inspect_memory(subject: Subject) -> Report:
    """Makes the variants one after the other and keeps them, as the server does."""
    source = subject.model.weights.module
    is_source = not subject.model.weights.made  # of a model that comes as a variant it has no numbers
    examined: list[Examined] = []
    rows: list[dict[str, Any]] = []
    for device in {each.choice.device for each in subject.chosen}:
        if device.type == "cuda":
            torch.zeros(1, device=device)  # so that CUDA's own context is no variant's
    gc.collect()
    modules: list[nn.Module] = []
    process_before, cuda_before = process_bytes(), _cuda_of(subject)
    for each in subject.build():
        gc.collect()
        process_after = process_bytes()
        device = each.variant.device
        cuda_after = _cuda_of(subject)
        row = _row(each.variant, source, subject.model.parameters)
        row["additional_bytes"] = tensor_bytes(*modules, each.variant.built.module) - tensor_bytes(*modules)
        row["process_growth_bytes"] = _growth(process_after, process_before)
        row["cuda_growth_bytes"] = _growth(cuda_after.get(device), cuda_before.get(device))
        modules.append(each.variant.built.module)
        examined.append(each)
        rows.append(each.as_json() | row)
        process_before, cuda_before = process_after, cuda_after
    sizes = {each.variant.name: row["tensor_bytes"] for each, row in zip(examined, rows, strict=True)}
    for each, row in zip(examined, rows, strict=True):
        fp32 = reference_of(each, examined)
        row["reduction_against_fp32"] = sizes[fp32.variant.name] / row["tensor_bytes"] if fp32 else None
    alone, together = sum(sizes.values()), tensor_bytes(*modules)
    body = {
        "environment": describe([each.variant.device for each in examined], None),
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
        "The process's growth is that of resident pages, in the order of the table, with what allocators "
        "keep.",
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


def _row(variant: Variant, source: nn.Module, parameters: int) -> dict[str, Any]:
    theory = theoretical_bytes(source, variant.kind, variant.built)
    measured = tensor_bytes(variant.built.module)
    return {
        "weights": variant.kind.weights,
        "ideal_bytes": ideal_bytes(variant.kind, variant.built, parameters),
        "theoretical_bytes": theory,
        "tensor_bytes": measured,
        "bits_per_parameter": 8 * measured / parameters,
    }


def _cuda_of(subject: Subject) -> dict[torch.device, int | None]:
    return {each.choice.device: _cuda_bytes(each.choice.device) for each in subject.chosen}


def _table(subject: Subject, examined: list[Examined], rows: list[dict[str, Any]]) -> Any:
    made = table(
        f"Memory of the variants of {subject.model.name}, in MB (a million bytes)",
        ("variant", "device", "weights"),
        ("ideal", "theory", "tensors", "bits/parameter", "against fp32", "added", "process", "CUDA"),
    )
    for each, row in zip(examined, rows, strict=True):
        made.add_row(
            each.label, str(each.variant.device), row["weights"], _mb(row["ideal_bytes"]),
            _mb(row["theoretical_bytes"]), _mb(row["tensor_bytes"]), f"{row['bits_per_parameter']:.2f}",
            _times(row["reduction_against_fp32"]), _mb(row["additional_bytes"]),
            _mb(row["process_growth_bytes"]), _mb(row["cuda_growth_bytes"]),
        )  # fmt: skip
    return made


def _mb(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.2f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
