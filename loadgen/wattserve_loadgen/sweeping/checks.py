"""What is checked before the first request: a sweep that cannot work says so at once, naming the row.

And whether an interrupted sweep can go on: its figures would have to belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wattserve_client import ServerInfo, VariantState
from wattserve_common.dataset import Dataset
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.limits import parse_limits
from wattserve_loadgen.model.results import Results, TargetSummary
from wattserve_loadgen.model.server_info import difference
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.schedule import Plan
from wattserve_loadgen.sweeping.environment import describe_client
from wattserve_loadgen.sweeping.servers import Site
from wattserve_loadgen.target.wattserve import GENERATING_TASK

# What must be the same when an interrupted sweep goes on.
_SAME_CLIENT = ("cpu_model", "usable_cpus", "python", "processes", "deadline_seconds")


def choose_variants(info: ServerInfo, asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The variants to sweep, in the order asked for; all that the server could make when none is named."""
    names = [variant.name for variant in info.variants]
    usable = [variant.name for variant in info.variants if variant.state != VariantState.FAILED]
    for name in asked or ():
        if name not in names:
            raise PlanError(f"unknown variant {name!r}; this server has {', '.join(names)}")
    return asked or tuple(usable or names)


def check(
    info: ServerInfo,
    variants: Sequence[str],
    loads: Sequence[Load],
    dataset: Dataset,
    objective: str = "",
) -> None:
    """PlanError when the server would refuse a row or a load, or orders labels differently."""
    if dataset.pixel_shape or info.pixel_shape:
        _check_images(info, dataset)
    else:
        check_tokens(str(dataset.folder), info, dataset)
    if info.task == GENERATING_TASK:
        _check_prompts(info, loads, dataset)
    elif of_tokens := [limit.name for limit in parse_limits(objective) if limit.name != "latency"]:
        raise PlanError(
            f"--slo {objective}: this server's model writes no tokens, so it has no {of_tokens[0]}"
        )
    if wrong := dataset.unlike_labels(info.labels):
        raise PlanError(wrong)
    for variant in info.variants:
        if variant.name in variants and f"sha256 {dataset.sha256[:12]}" in variant.detail:
            raise PlanError(
                f"{dataset.folder}: {variant.name} was calibrated on this very dataset; evaluate it on"
                " other rows, or leave it out by --variants"
            )
    most = info.limits.max_request_sequences
    for load in loads:
        if most and load.sequences > most:
            raise PlanError(f"{load.name}: this server takes at most {most} sequences in a request")


def _check_images(info: ServerInfo, dataset: Dataset) -> None:
    taken = tuple(info.pixel_shape)
    if not taken:
        raise PlanError(f"{dataset.folder}: holds images, and this server's model takes token ids")
    if not dataset.pixel_shape:
        raise PlanError(
            f"{dataset.folder}: holds token ids, and this server's model takes images, {list(taken)} each:"
            " it needs a folder with pixel_values.pt and labels.pt"
        )
    fits = len(dataset.pixel_shape) == len(taken) and all(
        want in (0, size) for size, want in zip(dataset.pixel_shape, taken, strict=True)
    )
    if not fits:  # 0: any size
        raise PlanError(
            f"{dataset.folder}: its images are {list(dataset.pixel_shape)}, and this server's model takes"
            f" {list(taken)} (channels, height, width)"
        )


def check_tokens(where: str, info: ServerInfo, dataset: Dataset) -> None:
    """PlanError names the row that the server would refuse. `where`: the dataset, as the user named it."""
    longest = info.limits.max_sequence_tokens
    vocabulary = info.limits.vocabulary_size
    for index, row in enumerate(dataset.rows):
        if longest and len(row) > longest:
            raise PlanError(
                f"{where}: row {index} has {len(row)} tokens, this server takes at most {longest};"
                f" prepare the dataset with --max-length {longest}"
            )
        if vocabulary and int(row.max()) >= vocabulary:
            raise PlanError(
                f"{where}: row {index} holds token {int(row.max())}, but the model's vocabulary has"
                f" {vocabulary}; prepare the dataset with this model's tokenizer"
            )


def _check_prompts(info: ServerInfo, loads: Sequence[Load], dataset: Dataset) -> None:
    if not dataset.max_new_tokens:
        raise PlanError(
            f"{dataset.folder}: this server's model writes tokens, and the folder does not say how many"
            " (max_new_tokens.pt); make it with `loadgen prepare --prompts` or --random-prompts"
        )
    longest = info.limits.max_sequence_tokens
    for index, (row, new) in enumerate(zip(dataset.rows, dataset.max_new_tokens, strict=True)):
        if longest and len(row) + new > longest:
            raise PlanError(
                f"{dataset.folder}: row {index} has {len(row)} tokens and is to be followed by {new}; this"
                f" server takes at most {longest} together"
            )
    for load in loads:
        if load.sequences > 1:
            raise PlanError(f"{load.name}: a request to a language model holds one prompt")


def check_same_sweep(
    before: Results, options: SweepOptions, plan: Plan, dataset: Dataset, sites: Mapping[str, Site]
) -> None:
    """PlanError when an interrupted sweep cannot go on, because its figures would not belong together."""
    if before.complete:
        raise PlanError("this sweep is complete: nothing is left to resume; --force measures it anew")
    if before.dataset.sha256 != dataset.sha256:
        raise PlanError(f"{dataset.folder}: is not the dataset that the interrupted sweep was measured with")
    if plan != replace(before.plan, own_loads={}):
        raise PlanError(
            f"the interrupted sweep had another plan ({_difference(before.plan, plan)}); resume it with"
            " --plan and the plan.toml in its folder, or measure anew into another one"
        )
    for target in before.targets:
        if target.name not in sites:
            raise PlanError(f"{target.address} was a server of the interrupted sweep: name it again")
        summary = sites[target.name].summary()
        change = difference(target.server, summary.server)
        if change:
            raise PlanError(f"{target.address} is not the server of the interrupted sweep: {change}")
        for what in ("protocol", "meter_origin"):
            was, now = getattr(target, what), getattr(summary, what)
            if was != now:
                raise PlanError(
                    f"{target.name}: the interrupted sweep had the {what} {was}, and it is {now} now"
                )
    now_client = client_of(options, before.targets)
    for name in _SAME_CLIENT:
        if before.client.get(name) != now_client[name]:
            raise PlanError(
                f"the client's {name} was {before.client.get(name)} in the interrupted sweep, and is"
                f" {now_client[name]} now"
            )


def client_of(options: SweepOptions, targets: Sequence[TargetSummary]) -> dict[str, Any]:
    """The client's machine, and how it asks."""
    asking = {"processes": options.processes, "deadline_seconds": options.deadline_s}
    return describe_client([target.address for target in targets]) | asking


def _difference(before: Plan, now: Plan) -> str:
    names = [name for name in before.__dataclass_fields__ if getattr(before, name) != getattr(now, name)]
    return ", ".join(names)
