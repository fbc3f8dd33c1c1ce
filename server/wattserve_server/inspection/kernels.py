"""Which products each variant really runs, on which operands, by which kernels, as the profiler has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from wattserve_server.engine.variants.cpu_verbose import unit
from wattserve_server.engine.variants.kernel_names import kernel_facts, on_tensor_cores
from wattserve_server.engine.variants.profile import Profile, profile_batch
from wattserve_server.engine.variants.trace import MatrixCall
from wattserve_server.engine.variants.tuning import tune
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.variants.verification import declared, is_judged, judge, sample
from wattserve_server.inspection.environment import describe
from wattserve_server.inspection.output import Report, table

LINEAR, KEPT, ATTENTION = "weights", "weights, kept", "attention"


@dataclass(slots=True)
class _Row:
    """Products alike: the same operator, operands, precision and use."""

    op: str
    operands: tuple[str, str]
    ran_in: str
    use: str
    calls: int = 0
    macs: int = 0
    microseconds: float = 0.0
    kernels: dict[str, int] = field(default_factory=dict)


def inspect_kernels(variants: Sequence[Variant]) -> Report:
    """Profile a small batch of each, as it is served, after one to warm up. Raises what a batch raises."""
    bodies: list[dict[str, Any]] = []
    for variant in variants:
        tune(variant)
        batch = variant.prepare(sample(variant))
        variant.run(batch)
        bodies.append(_body(variant, profile_batch(variant, batch, with_kernels=True)))
    return Report(
        "inspect.kernels",
        {"environment": describe([variant.device for variant in variants], None), "variants": bodies},
        [_overview(bodies), *(_products(body) for body in bodies)],
        [
            "Multiply-accumulates come from the shapes, operands from the profiler; times are of one small "
            "batch under the profiler, and no measure of speed.",
            "Tensor Cores are told by the kernels' names, CPU instructions by the names of oneDNN's "
            "implementations; MKL and oneDNN's gemm_api name none.",
        ],
    )


def _body(variant: Variant, profile: Profile) -> dict[str, Any]:
    operands = declared(variant)
    verification = judge(variant, profile)
    rows = _rows(profile, operands, variant.built.kept)
    macs, time = sum(row.macs for row in rows), sum(row.microseconds for row in rows)
    by_weights = [call for call in profile.calls if call.on_weights]
    as_declared = sum(call.macs for call in by_weights if profile.precision(call) == operands)
    on_cuda = profile.device == "cuda"
    return {
        "variant": variant.name,
        "device": str(variant.device),
        "compute_capability": profile.hardware if on_cuda else None,
        "cpu_instructions_available": None if on_cuda else profile.hardware,
        "declared_operands": operands,
        "proxy": variant.kind.proxy or None,
        "verified": verification.verified,
        "verdict": verification.words,
        "weight_macs": sum(call.macs for call in by_weights),
        "weight_macs_share_as_declared": as_declared / max(1, sum(call.macs for call in by_weights)),
        "matrix_hardware": profile.units(),
        "tensor_cores": _any_tensor_cores(profile) if on_cuda else None,
        "products": [
            {
                "op": row.op,
                "operands": list(row.operands),
                "precision": row.ran_in,
                "use": row.use,
                "calls": row.calls,
                "macs": row.macs,
                "macs_share": row.macs / macs if macs else None,
                "time_us": row.microseconds,
                "time_share": row.microseconds / time if time else None,
                "kernels": [
                    {"name": name, "calls": calls, "tensor_cores": kernel_facts(name).tensor_cores}
                    for name, calls in row.kernels.items()
                ],
            }
            for row in rows
        ],
        "implementations": [
            {
                "library": each.library,
                "name": each.name,
                "operands": each.operands or None,
                "calls": each.calls,
                "instructions": unit(each) or None,
            }
            for each in profile.implementations
        ],
    }


def _any_tensor_cores(profile: Profile) -> bool | None:
    """In the products by weights; None where no kernel's name tells."""
    return on_tensor_cores(kernel for call in profile.calls if call.on_weights for kernel in call.kernels)


def _rows(profile: Profile, operands: str, kept: Sequence[str]) -> list[_Row]:
    """The most work first."""
    rows: dict[tuple[str, tuple[str, str], str, str], _Row] = {}
    for call in profile.calls:
        key = (call.op, call.operands, profile.precision(call), _use(call, operands, kept))
        row = rows.setdefault(key, _Row(*key))
        row.calls += 1
        row.macs += call.macs
        row.microseconds += call.microseconds
        for kernel in call.kernels:
            row.kernels[kernel] = row.kernels.get(kernel, 0) + 1
    return sorted(rows.values(), key=lambda row: -row.macs)


def _use(call: MatrixCall, operands: str, kept: Sequence[str]) -> str:
    if not call.on_weights:
        return ATTENTION
    return LINEAR if is_judged(call, operands, kept) else KEPT


def _overview(bodies: Sequence[dict[str, Any]]) -> Table:
    made = table("What ran", ("variant", "device", "declares", "verdict"), ("as declared %",))
    hardware = {
        body["device"]: body["compute_capability"] or body["cpu_instructions_available"] for body in bodies
    }
    made.caption_justify = "left"  # each device's once, however many variants ran there
    made.caption = "\n".join(f"{device}: {escape(found)}" for device, found in hardware.items() if found)
    for body in bodies:
        made.add_row(
            body["variant"] + (" (PROXY)" if body["proxy"] else ""),
            body["device"],
            body["declared_operands"],
            "verified" if body["verified"] else f"REFUSED: {escape(body['verdict'])}",
            f"{100 * body['weight_macs_share_as_declared']:.1f}",
        )
    return made


def _products(body: dict[str, Any]) -> Table:
    made = table(
        f"Matrix products of {body['variant']} on {body['device']}",
        ("operator", "of", "operands", "ran in", "kernels"),
        ("calls", "work %", "time %"),
    )
    made.columns[0].no_wrap = False  # an operator's name may take half of a narrow terminal
    for column in made.columns[1:4]:
        column.no_wrap = True
    made.caption, made.caption_justify = f"Matrix hardware: {escape(body['matrix_hardware'])}", "left"
    for product in body["products"]:
        kernels = (f"{kernel['calls']} x {escape(kernel['name'])}" for kernel in product["kernels"])
        made.add_row(
            product["op"],
            product["use"],
            " x ".join(product["operands"]),
            product["precision"],
            "\n".join(kernels) or "-",
            f"{product['calls']:,}",
            _percent(product["macs_share"]),
            _percent(product["time_share"]),
        )
    for each in body["implementations"]:
        named = f"{each['calls']} x {each['library']} {escape(each['name'])}"
        made.add_row("", "any", each["operands"] or "-", "", named, "", "", "")
    return made


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
