"""What is checked before the first request: a sweep that cannot work says so at once, naming the row.

What the server said of itself and the dataset, in; errors, reasons, notes and results without figures, out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from wattserve_loadgen import environment
from wattserve_loadgen.codec import message_to_plain
from wattserve_loadgen.dataset import NO_LABEL, Dataset
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.schedule import Plan, cells
from wattserve_loadgen.schema import SCHEMA, SCHEMA_VERSION, DatasetSummary, Results
from wattserve_proto.v1 import inference_pb2 as pb


def choose_variants(info: pb.ServerInfo, asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The variants to sweep, in the order asked for; all of the server's when none is named."""
    known = [variant.name for variant in info.variants]
    for name in asked or ():
        if name not in known:
            raise PlanError(f"unknown variant {name!r}; this server has {', '.join(known)}")
    return asked or tuple(known)


def check(info: pb.ServerInfo, plan: Plan, dataset: Dataset) -> None:
    """PlanError when the server would refuse a row, forget a receipt, or order labels differently."""
    longest = info.limits.max_sequence_tokens
    vocabulary = info.limits.vocabulary_size
    classes = len(info.labels)
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
    if classes and int(dataset.labels.max()) >= classes:
        index = int(np.argmax(dataset.labels >= classes))
        raise PlanError(
            f"{dataset.folder}: row {index} has the label {int(dataset.labels[index])}, but the model has"
            f" {classes} labels: {', '.join(info.labels)}"
        )
    kept = info.limits.receipt_retention_seconds
    if is_metered(info) and kept and plan.warmup_seconds + plan.seconds > kept:
        raise PlanError(
            f"--seconds {plan.seconds:g}: this server forgets receipts after {kept} s; use shorter cells"
        )
    own, theirs = _label_names(dataset), [name.casefold() for name in info.labels]
    if own and own != theirs and sorted(own) == sorted(theirs):
        raise PlanError(
            f"{dataset.folder}: its labels are in the order {', '.join(own)}, the model's are"
            f" {', '.join(theirs)};"
            " prepare it with --tokenizer of this model"
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


def notes(info: pb.ServerInfo, dataset: Dataset, same_machine: bool) -> list[str]:
    """What a reader of the results must know besides the figures."""
    found = []
    if same_machine:
        found.append(
            "The client ran on the server's machine: it took part of the CPU, and a meter that covers the"
            " whole machine counts the client's energy too."
        )
    own = _label_names(dataset)
    if own and info.labels and sorted(own) != sorted(name.casefold() for name in info.labels):
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
    info: pb.ServerInfo, plan: Plan, dataset: Dataset, target: str, command: Sequence[str]
) -> Results:
    """What results say before anything is measured."""
    client = environment.describe_client(target)
    lengths = dataset.lengths
    return Results(
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        loadgen_version=environment.loadgen_version(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        target=target,
        ended="not finished",
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
        ),
        client=client,
        server=message_to_plain(info),
        energy_reason="nothing was measured",
        accuracy_reason=accuracy_reason(info, dataset),
        accuracy_rows=0,
        accuracy={},
        notes=notes(info, dataset, bool(client["same_machine_as_server"])),
    )


def is_metered(info: pb.ServerInfo) -> bool:
    """Whether the server has any meter."""
    return info.meter.source.quality not in (pb.ENERGY_QUALITY_NONE, pb.ENERGY_QUALITY_UNSPECIFIED)


def sensor_period_seconds(info: pb.ServerInfo) -> float:
    """How often the meter's value can change; 0 without a meter."""
    if not is_metered(info):
        return 0.0
    return info.meter.update_period_seconds or info.meter.poll_period_seconds


def _label_names(dataset: Dataset) -> list[str]:
    names = dataset.description.get("label_names")
    return [str(name).casefold() for name in names] if isinstance(names, list) else []
