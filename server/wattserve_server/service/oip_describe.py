"""What the Open Inference Protocol says of the server and its model: metadata, configuration, statistics."""

from __future__ import annotations

from importlib.metadata import version

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.policy import LAST_PRIORITY, NORMAL_PRIORITY
from wattserve_server.engine.roster import Entry, State
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.service.oip_names import VERSION, alias
from wattserve_server.service.serving import Ready
from wattserve_server.telemetry.statistics import Duration, VariantStatistics

SERVER_NAME = "wattserve"

EXTENSIONS = (
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)

_STATES = {
    State.READY: "READY",
    State.LOADING: "LOADING",
    State.UNLOADED: "UNAVAILABLE",
    State.FAILED: "UNAVAILABLE",
}

_Tensor = oip.ModelMetadataResponse.TensorMetadata


def server_metadata() -> oip.ServerMetadataResponse:
    return oip.ServerMetadataResponse(name=SERVER_NAME, version=version("wattserve"), extensions=EXTENSIONS)


def model_metadata(name: str, ready: Ready) -> oip.ModelMetadataResponse:
    """Shapes with the batch dimension."""
    return oip.ModelMetadataResponse(
        name=name,
        versions=[VERSION],
        platform=SERVER_NAME,
        inputs=[
            _Tensor(name=each.name, datatype=_datatype(each.data_type), shape=(-1, *each.dims))
            for each in _inputs(ready)
        ],
        outputs=[
            _Tensor(name=each.name, datatype=_datatype(each.data_type), shape=(-1, *each.dims))
            for each in _outputs(ready.engine)
        ],
    )


def model_config(name: str, ready: Ready, choice: Choice) -> oip.ModelConfig:
    """Dimensions without that of the batch. choice: the variant that the name stands for."""
    engine = ready.engine
    limits = engine.limits.batch[choice.device]
    parameters = {
        "task": engine.model.task.name,
        "variant": choice.name,
        "variants": ",".join(engine.roster.names),
    }
    return oip.ModelConfig(
        name=name,
        platform=SERVER_NAME,
        backend=SERVER_NAME,
        max_batch_size=engine.limits.max_request,
        input=_inputs(ready),
        output=_outputs(engine),
        dynamic_batching=oip.ModelDynamicBatching(
            preferred_batch_size=[limits.max_sequences],
            max_queue_delay_microseconds=limits.max_wait_ns // 1000,
            priority_levels=LAST_PRIORITY,
            default_priority_level=NORMAL_PRIORITY,
        ),
        parameters={key: oip.ModelParameter(string_value=value) for key, value in parameters.items()},
        model_transaction_policy=oip.ModelTransactionPolicy(decoupled=False),
    )


def _inputs(ready: Ready) -> list[oip.ModelInput]:
    """Token ids and texts are all optional, because either stands without the other: clients read of an input
    that is not that it must always be sent."""
    facts = ready.engine.model.facts
    if facts.pixel_shape:
        return [oip.ModelInput(name="pixel_values", data_type=oip.TYPE_FP32, dims=facts.pixel_shape)]
    inputs = [
        oip.ModelInput(name=name, data_type=oip.TYPE_INT64, dims=[-1], allow_ragged_batch=True, optional=True)
        for name in ("input_ids", "attention_mask")
    ]
    if ready.tokenizer is not None:
        inputs.append(oip.ModelInput(name="text", data_type=oip.TYPE_STRING, dims=[1], optional=True))
    return inputs


def _outputs(engine: Engine) -> list[oip.ModelOutput]:
    name = engine.model.task.output_name
    return [oip.ModelOutput(name=name, data_type=oip.TYPE_FP32, dims=[_width(engine)])]


def _width(engine: Engine) -> int:
    """Of an output row; -1 when the model's config does not say."""
    model = engine.model
    return len(model.labels) or getattr(model.config, "hidden_size", None) or -1


def _datatype(kind: oip.DataType.ValueType) -> str:
    return "BYTES" if kind == oip.TYPE_STRING else oip.DataType.Name(kind).removeprefix("TYPE_")


def model_index(ready: Ready, only_ready: bool) -> oip.RepositoryIndexResponse:
    """The model, in the state of its default variant, and each variant."""
    engine = ready.engine
    named = [(engine.model.name, engine.roster.named(engine.default_variant))]
    named += [(alias(engine, entry.choice.name), entry) for entry in engine.roster]
    message = oip.RepositoryIndexResponse()
    for name, entry in named:
        if entry.state is State.READY or not only_ready:
            message.models.add(
                name=name, version=VERSION, state=_STATES[entry.state], reason=_reason(entry, engine)
            )
    return message


def _reason(entry: Entry, engine: Engine) -> str:
    if entry.state is State.UNLOADED:
        return "unloaded; a request loads it" if engine.loader.rules.is_lazy else "unloaded"
    return entry.reason


def model_statistics(name: str, found: VariantStatistics, entry: Entry | None) -> oip.ModelStatistics:
    """entry: of the variant, when they are those of one."""
    message = oip.ModelStatistics(
        name=name,
        version=VERSION,
        last_inference=found.last_unix_ms,
        inference_count=found.sequences,
        execution_count=sum(duration.count for duration in found.batches.values()),
        inference_stats=oip.InferStatistics(
            success=_duration(found.success),
            fail=_duration(found.fail),
            queue=_duration(found.queue),
            compute_input=_duration(found.tokenize),
            compute_infer=_duration(found.compute),
            compute_output=_duration(found.output),
        ),
        batch_stats=[
            oip.InferBatchStatistics(batch_size=size, compute_infer=_duration(duration))
            for size, duration in sorted(found.batches.items())
        ],
    )
    if entry is not None and entry.variant is not None:
        device = entry.choice.device
        message.memory_usage.add(
            type="GPU" if device.type == "cuda" else "CPU",
            id=device.index or 0,
            byte_size=entry.variant.parameter_bytes,
        )
    return message


def _duration(duration: Duration) -> oip.StatisticDuration:
    return oip.StatisticDuration(count=duration.count, ns=duration.total_ns)
