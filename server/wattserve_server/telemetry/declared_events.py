"""The metrics that are counted while requests are served, and their buckets."""

from __future__ import annotations

from wattserve_server.telemetry.declaration import Declared, Kind

# A request for one short text takes 0.3 ms of a GPU and some milliseconds of a CPU, its parts a tenth of
# that, and a queue can make it wait for seconds: finest around 1 ms, where half a millisecond is half of it.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
# Calls are requests, and streams, which last for as long as their callers like.
CALL_SECONDS = (*SECONDS, 30.0, 60.0, 300.0)
# 500 W for 3 ms, shared by a batch of 128, are 12 mJ; 10 W for 0.5 ms, shared by 16, are 0.3 mJ; a request
# for 256 long texts takes a CPU 10 s of 10 W. Steps of 2 to 2.5 over all of these. There is no histogram of
# joules per token: the mean, which is what a bill is made of, comes exactly from two counters, and how it
# spreads is in what spreads it, the lengths and the batches.
JOULES = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Below 1 % nobody would act on it; above 1 the provisional figure was worth nothing, and how little still
# tells a law that was not learned from one that is merely coarse.
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

STAGES = ("tokenize", "queue", "compute", "output")
"""Values of the label `stage`, as `Times` has them."""

_NOT_YET = "until the first of this variant"

REQUESTS = Declared(
    "wattserve_requests_total",
    Kind.COUNTER,
    "requests",
    "Requests that ended, by gRPC status code, those of a stream one by one. The variant is `none` for a "
    "request that named none that exists.",
    ("variant", "code"),
    "a code other than OK: until the first",
)
REQUEST_DURATION = Declared(
    "wattserve_request_duration_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "From receiving a request to having its answer; answered requests only.",
    ("variant",),
    _NOT_YET,
    SECONDS,
    has_exemplars=True,
)
STAGE_DURATION = Declared(
    "wattserve_stage_duration_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "Where the time of an answered request went: tokenize, queue, compute, output (the rest of its way "
    "through the engine). They sum to its duration, but for reading it and a wait for settled energy.",
    ("variant", "stage"),
    _NOT_YET,
    SECONDS,
)
BATCH_SEQUENCES = Declared(
    "wattserve_batch_sequences",
    Kind.HISTOGRAM,
    "sequences",
    "Sequences run together in one batch.",
    ("variant",),
    _NOT_YET,
    SEQUENCES,
)
TOKENS = Declared(
    "wattserve_tokens_total",
    Kind.COUNTER,
    "tokens",
    "Real tokens (of images: sequence positions) of the requests' batches that ran, whether or not their "
    "energy is known. For joules per token use wattserve_settled_tokens_total.",
    ("variant",),
)
PADDED_TOKENS = Declared(
    "wattserve_padded_tokens_total",
    Kind.COUNTER,
    "tokens",
    "Tokens computed in these batches, padding included.",
    ("variant",),
)
REQUEST_ENERGY = Declared(
    "wattserve_request_energy_joules",
    Kind.HISTOGRAM,
    "joules",
    "Settled active energy of a request, however it ended; observed when its receipt is settled.",
    ("variant",),
    "until the first of this variant; for ever where the energy is not known",
    JOULES,
    has_exemplars=True,
)
UNKNOWN_RECEIPTS = Declared(
    "wattserve_unknown_receipts_total",
    Kind.COUNTER,
    "receipts",
    "Requests that ran and whose energy is not known.",
    ("variant",),
)
NOT_FINITE = Declared(
    "wattserve_not_finite_answers_total",
    Kind.COUNTER,
    "sequences",
    "Sequences answered with NaN or infinity, which their callers were told as an error.",
    ("variant",),
)
PROVISIONAL_ERROR = Declared(
    "wattserve_provisional_error_ratio",
    Kind.HISTOGRAM,
    "ratio",
    "Distance of a request's provisional energy from its settled one, relative to the latter.",
    ("variant",),
    "until the first of this variant that had both figures",
    RATIOS,
)
BUILD = Declared("wattserve_build_info", Kind.INFO, "always 1", "Versions.", ("version", "python"))

_METHOD = ("grpc_type", "grpc_service", "grpc_method")
_NO_CALL = "until the first call of this method"

CALLS_STARTED = Declared(
    "grpc_server_started_total",
    Kind.COUNTER,
    "calls",
    "Calls that reached a method of this server. Less the handled ones: those in progress.",
    _METHOD,
    _NO_CALL,
)
CALLS_HANDLED = Declared(
    "grpc_server_handled_total",
    Kind.COUNTER,
    "calls",
    "Calls that ended, by their code in the spelling of gRPC for Go (`OK`, `InvalidArgument`, `Canceled`); a "
    "whole stream is one call.",
    (*_METHOD, "grpc_code"),
    "until the first call of this method that ended so",
)
CALL_DURATION = Declared(
    "grpc_server_handling_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "How long these calls were in their handlers; of a stream: how long it lasted.",
    _METHOD,
    _NO_CALL,
    CALL_SECONDS,
)

GROUPS: dict[str, tuple[Declared, ...]] = {
    "Requests": (REQUESTS, REQUEST_DURATION, STAGE_DURATION, REQUEST_ENERGY, PROVISIONAL_ERROR,
                 UNKNOWN_RECEIPTS),
    "Batches": (BATCH_SEQUENCES, TOKENS, PADDED_TOKENS, NOT_FINITE),
    "gRPC methods": (CALLS_STARTED, CALLS_HANDLED, CALL_DURATION),
    "Build": (BUILD,),
}  # fmt: skip
"""All of them, as docs/metrics.md shows them."""
