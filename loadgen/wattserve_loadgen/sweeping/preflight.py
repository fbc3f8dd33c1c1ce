"""What is checked before the first request: a sweep that cannot work says so at once, naming the row.

What the server said of itself and the dataset, in; errors, reasons, notes and results without figures, out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from wattserve_loadgen.data.dataset import NO_LABEL, Dataset
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.plan.schedule import Plan, cells
from wattserve_loadgen.results import sensor, standing
from wattserve_loadgen.results.codec import message_to_plain
from wattserve_loadgen.results.schema import SCHEMA, SCHEMA_VERSION, DatasetSummary, Results, TargetSummary
from wattserve_loadgen.sweeping import environment
from wattserve_proto.v1 import inference_pb2 as pb

NOT_FINISHED = "not finished"  # how results say that a sweep is running, or was ended from outside
_LABELS_SHOWN = 10


def choose_variants(info: pb.ServerInfo, asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The variants to sweep, in the order asked for; all that the server could make when none is named."""
    known = [variant.name for variant in info.variants]
    made = [one.name for one in info.variants if one.state != pb.VARIANT_STATE_FAILED]
    for name in asked or ():
        if name not in known:
            raise PlanError(f"unknown variant {name!r}; this server has {', '.join(known)}")
    return asked or tuple(made or known)


def check(info: pb.ServerInfo, variants: Sequence[str], loads: Sequence[Load], dataset: Dataset) -> None:
    """PlanError when the server would refuse a row or a load, or orders labels differently."""
    if dataset.pixel_shape or info.pixel_shape:
        _check_images(info, dataset)
    else:
        _check_tokens(info, dataset)
    classes = len(info.labels)
    if classes and int(dataset.labels.max()) >= classes:
        index = int(np.argmax(dataset.labels >= classes))
        raise PlanError(
            f"{dataset.folder}: row {index} has the label {int(dataset.labels[index])}, but the model has"
            f" {classes} labels: {', '.join(info.labels[:_LABELS_SHOWN])}"
            f"{', ...' if classes > _LABELS_SHOWN else ''}"
        )
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
    own, theirs = _label_names(dataset), [name.casefold() for name in info.labels]
    if own and own != theirs and sorted(own) == sorted(theirs):
        raise PlanError(
            f"{dataset.folder}: its labels are in the order {', '.join(own)}, the model's are"
            f" {', '.join(theirs)};"
            " prepare it with --tokenizer of this model"
        )


def _check_images(info: pb.ServerInfo, dataset: Dataset) -> None:
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


def _check_tokens(info: pb.ServerInfo, dataset: Dataset) -> None:
    longest = info.limits.max_sequence_tokens
    vocabulary = info.limits.vocabulary_size
    for index, row in enumerate(dataset.rows):
        if longest and len(row) > longest:
            raise PlanError(
                f"{dataset.folder}: row {index} has {len(row)} tokens, this server takes at most {longest};"
                f" prepare the dataset with --max-length {longest}"
            )
        if vocabulary and int(row.max()) >= vocabulary:
            raise PlanError(
                f"{dataset.folder}: row {index} holds token {int(row.max())}, but the model's vocabulary has"
                f" {vocabulary}; prepare the dataset with this model's tokenizer"
            )


def accuracy_reason(info: pb.ServerInfo, dataset: Dataset) -> str:
    """Why accuracy does not apply, or ""."""
    if info.random_weights:
        return "the model has random weights"
    if not info.labels:
        return f"the task {info.task or 'of this model'} predicts no labels"
    missing = int((dataset.labels == NO_LABEL).sum())
    if missing == len(dataset.rows):
        return "the dataset has no labels"
    if missing:
        return f"{missing} of {len(dataset.rows)} rows of the dataset have no label"
    return ""


def notes(info: pb.ServerInfo, variants: Sequence[str], dataset: Dataset, same_machine: bool) -> list[str]:
    """What a reader of the results must know of a server besides the figures."""
    found = standing.remarks(plain_variants(info), variants)
    found += [
        f"The server could not make the variant {one.name}, which is left out: {one.state_reason}"
        for one in info.variants
        if one.state == pb.VARIANT_STATE_FAILED and one.name not in variants
    ]
    devices = sorted({one.device for one in info.variants if one.name in variants})
    if len(devices) > 1 and info.other_meters:
        found.append(
            f"The variants ran on {' and '.join(devices)}, each with a meter of its own: their joules cover"
            " different hardware, and a ratio between them compares unlike figures."
        )
    if same_machine:
        found.append(
            "The client ran on the server's machine: it took part of the CPU, and a meter that covers the"
            " whole machine counts the client's energy too."
        )
    own = _label_names(dataset)
    if (
        own
        and not _are_numbers(info.labels)
        and sorted(own) != sorted(name.casefold() for name in info.labels)
    ):
        found.append(
            f"The dataset names its labels {', '.join(own)} and the server {', '.join(info.labels)}:"
            " they are matched by index."
        )
    truncated = dataset.description.get("truncated_rows")
    if truncated:
        found.append(
            f"{truncated} rows of the dataset were cut to {dataset.description.get('max_length')} tokens."
        )
    return found


def empty_results(
    plan: Plan,
    dataset: Dataset,
    targets: list[TargetSummary],
    client: dict[str, Any],
    command: Sequence[str],
) -> Results:
    """What results say before anything is measured, but for notes and reasons."""
    lengths = dataset.lengths
    return Results(
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        loadgen_version=environment.loadgen_version(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        ended=NOT_FINISHED,
        cells_planned=sum(not cell.discarded for cell in cells(plan)),
        plan=plan,
        dataset=DatasetSummary(
            folder=str(dataset.folder),
            sha256=dataset.sha256,
            rows=len(dataset.rows),
            labelled=dataset.labelled,
            min_tokens=int(lengths.min()),
            mean_tokens=float(lengths.mean()),
            max_tokens=int(lengths.max()),
            description=dataset.description,
            pixel_shape=dataset.pixel_shape,
        ),
        client=client,
        targets=targets,
        boundary=boundary(targets),
        energy_reason="nothing was measured",
        accuracy_reason="",
        accuracy_rows=0,
        accuracy={},
        notes=[],
    )


def boundary(targets: Sequence[TargetSummary]) -> str:
    """Which hardware the joules cover, and whether the client's own are among them."""
    said = []
    for one in targets:
        covered = str(one.meter.get("boundary") or "")
        if one.meter_origin == "none" or not covered:
            said.append(f"{one.name}: no meter.")
            continue
        who = "the server's meter" if one.meter_origin == "server" else "a meter that loadgen read itself"
        client = "is not in it"
        if environment.is_this_machine(one.address) and _covers_processors(one.meter):
            client = "ran on the same processors and is in it"
        said.append(f"{one.name}: {who} covers {covered.rstrip('.')}; the client {client}.")
    return " ".join(said)


def _covers_processors(meter: Mapping[str, Any]) -> bool:
    """Whether a meter counts whatever runs on the machine's processors."""
    return "rapl" in str((meter.get("source") or {}).get("name", ""))


def is_metered(info: pb.ServerInfo) -> bool:
    """Whether the server has any meter."""
    none = (pb.ENERGY_QUALITY_NONE, pb.ENERGY_QUALITY_UNSPECIFIED)
    return any(meter.source.quality not in none for meter in (info.meter, *info.other_meters))


def sensor_period_seconds(info: pb.ServerInfo) -> float:
    """How often a reading of the slowest meter can bring something new; 0 without a meter."""
    meters = (info.meter, *info.other_meters) if is_metered(info) else ()
    return max((sensor.sensor_period_seconds(message_to_plain(one)) or 0.0 for one in meters), default=0.0)


def plain_variants(info: pb.ServerInfo) -> list[dict[str, Any]]:
    """The variants' descriptions as results.json keeps them."""
    return [message_to_plain(one) for one in info.variants]


def _are_numbers(labels: Sequence[str]) -> bool:
    """Whether they are only 0, 1, ...: a peer names none."""
    return list(labels) == [str(index) for index in range(len(labels))]


def _label_names(dataset: Dataset) -> list[str]:
    names = dataset.description.get("label_names")
    return [str(name).casefold() for name in names] if isinstance(names, list) else []
