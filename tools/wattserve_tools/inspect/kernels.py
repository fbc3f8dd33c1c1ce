"""Which products each variant really runs, on which operands, by which kernels, as the profiler has it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from wattserve_server.engine.variants.cpu_verbose import unit
from wattserve_server.engine.variants.profile import Profile, kernel_facts, on_tensor_cores, profile_batch
from wattserve_server.engine.variants.trace import MatrixCall
from wattserve_server.engine.variants.tuning import tune
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.variants.verification import declared, is_judged, judge, sample
from wattserve_tools.inspect.report import Report, empty_table, environment, figure

LINEAR, KEPT, ATTENTION = "weights", "weights, kept", "attention"


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
        {"environment": environment([variant.device for variant in variants], None), "variants": bodies},
        [_overview(bodies), *(_products_table(body) for body in bodies)],
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
    by_weights = [call for call in profile.calls if call.on_weights]
    weight_macs = sum(call.macs for call in by_weights)
    as_declared = sum(call.macs for call in by_weights if profile.precision(call) == operands)
    kernels = [kernel for call in by_weights for kernel in call.kernels]
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
        "weight_macs": weight_macs,
        "weight_macs_share_as_declared": as_declared / max(1, weight_macs),
        "matrix_hardware": profile.units(),
        "tensor_cores": on_tensor_cores(kernels) if on_cuda else None,
        "products": _products(profile, operands, variant.built.kept),
        "implementations": [
            {
                "library": code.library,
                "name": code.name,
                "operands": code.operands or None,
                "calls": code.calls,
                "instructions": unit(code) or None,
            }
            for code in profile.implementations
        ],
    }


def _products(profile: Profile, operands: str, kept: Sequence[str]) -> list[dict[str, Any]]:
    """Products with the same operator, operands, precision and use as one; the most work first."""
    groups: dict[tuple[str, tuple[str, str], str, str], list[MatrixCall]] = defaultdict(list)
    for call in profile.calls:
        groups[call.op, call.operands, profile.precision(call), _use(call, operands, kept)].append(call)
    all_macs = sum(call.macs for call in profile.calls)
    all_us = sum(call.microseconds for call in profile.calls)
    products = []
    for (op, pair, precision, use), calls in groups.items():
        macs, time_us = sum(call.macs for call in calls), sum(call.microseconds for call in calls)
        kernels = Counter(kernel for call in calls for kernel in call.kernels)
        products.append(
            {
                "op": op,
                "operands": list(pair),
                "precision": precision,
                "use": use,
                "calls": len(calls),
                "macs": macs,
                "macs_share": macs / all_macs if all_macs else None,
                "time_us": time_us,
                "time_share": time_us / all_us if all_us else None,
                "kernels": [
                    {"name": name, "calls": count, "tensor_cores": kernel_facts(name).tensor_cores}
                    for name, count in kernels.items()
                ],
            }
        )
    return sorted(products, key=lambda product: -product["macs"])


def _use(call: MatrixCall, operands: str, kept: Sequence[str]) -> str:
    if not call.on_weights:
        return ATTENTION
    return LINEAR if is_judged(call, operands, kept) else KEPT


def _overview(bodies: Sequence[dict[str, Any]]) -> Table:
    table = empty_table("What ran", ("variant", "device", "declares", "verdict"), ("as declared %",))
    hardware = {
        body["device"]: body["compute_capability"] or body["cpu_instructions_available"] for body in bodies
    }
    table.caption_justify = "left"  # each device's once, however many variants ran there
    table.caption = "\n".join(f"{device}: {escape(words)}" for device, words in hardware.items() if words)
    for body in bodies:
        table.add_row(
            body["variant"] + (" (PROXY)" if body["proxy"] else ""),
            body["device"],
            body["declared_operands"],
            "verified" if body["verified"] else f"REFUSED: {escape(body['verdict'])}",
            f"{100 * body['weight_macs_share_as_declared']:.1f}",
        )
    return table


def _products_table(body: dict[str, Any]) -> Table:
    table = empty_table(
        f"Matrix products of {body['variant']} on {body['device']}",
        ("operator", "of", "operands", "ran in", "kernels"),
        ("calls", "work %", "time %"),
    )
    table.columns[0].no_wrap = False  # an operator's name may take half of a narrow terminal
    for column in table.columns[1:4]:
        column.no_wrap = True
    table.caption, table.caption_justify = f"Matrix hardware: {escape(body['matrix_hardware'])}", "left"
    for product in body["products"]:
        kernels = (f"{kernel['calls']} x {escape(kernel['name'])}" for kernel in product["kernels"])
        table.add_row(
            product["op"],
            product["use"],
            " x ".join(product["operands"]),
            product["precision"],
            "\n".join(kernels) or "-",
            f"{product['calls']:,}",
            *(figure(product[share], ".1%").removesuffix("%") for share in ("macs_share", "time_share")),
        )
    for code in body["implementations"]:
        named = f"{code['calls']} x {code['library']} {escape(code['name'])}"
        table.add_row("", "any", code["operands"] or "-", "", named, "", "", "")
    return table
