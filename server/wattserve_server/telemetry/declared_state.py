"""The metrics that are read at every scrape: queue, devices, variants, energy, meters, boards."""

from __future__ import annotations

from wattserve_server.telemetry.declaration import Declared, Kind

_NO_LEDGER = "until the meter's first reading; for ever without a meter"
_NOT_READY = "while the variant is not in memory"
_NOT_FOUND = "where the start-up probe could not tell"

QUEUE = Declared("wattserve_queue_sequences", Kind.GAUGE, "sequences", "Sequences that wait, for any device.")
QUEUE_LIMIT = Declared(
    "wattserve_queue_limit_sequences",
    Kind.GAUGE,
    "sequences",
    "How many may wait, all devices' queues together; requests beyond are refused.",
)
PENDING_RECEIPTS = Declared(
    "wattserve_pending_receipts", Kind.GAUGE, "receipts", "Receipts that are not final yet."
)
DEVICE_BUSY = Declared(
    "wattserve_device_busy_seconds_total",
    Kind.COUNTER,
    "seconds",
    "For how long the device ran batches, warm-up included; its rate is the share of the time it was busy.",
    ("device",),
)
MODEL = Declared(
    "wattserve_model_info", Kind.INFO, "always 1", "The hosted model.", ("name", "source", "task")
)
VARIANT = Declared(
    "wattserve_variant_info",
    Kind.INFO,
    "always 1",
    "What a variant really runs; proxy and verified say how far its name can be trusted.",
    ("variant", "device", "dtype", "kernels", "proxy", "verified"),
    _NOT_READY,
)
VARIANT_READY = Declared(
    "wattserve_variant_ready", Kind.GAUGE, "0 or 1", "1 for a variant in memory.", ("variant",)
)
VARIANT_BYTES = Declared(
    "wattserve_variant_parameter_bytes",
    Kind.GAUGE,
    "bytes",
    "Weights and scales of a variant.",
    ("variant",),
    _NOT_READY,
)
VARIANT_WARMUP = Declared(
    "wattserve_variant_warmup_seconds",
    Kind.GAUGE,
    "seconds",
    "Time that warming a variant up took.",
    ("variant",),
    _NOT_READY,
)

ACTIVE_ENERGY = Declared(
    "wattserve_energy_active_joules_total",
    Kind.COUNTER,
    "joules",
    "Settled active energy, by variant.",
    ("device", "variant"),
    _NO_LEDGER,
)
SETTLED_SEQUENCES = Declared(
    "wattserve_settled_sequences_total",
    Kind.COUNTER,
    "sequences",
    "Sequences whose energy is in wattserve_energy_active_joules_total.",
    ("device", "variant"),
    _NO_LEDGER,
)
SETTLED_TOKENS = Declared(
    "wattserve_settled_tokens_total",
    Kind.COUNTER,
    "tokens",
    "Real tokens of these sequences.",
    ("device", "variant"),
    _NO_LEDGER,
)
ACCOUNTS = Declared(
    "wattserve_energy_account_joules_total",
    Kind.COUNTER,
    "joules",
    "Settled energy, by account (active, warmup, idle, unattributed, gap); with the pending energy they sum "
    "to what was measured.",
    ("device", "account"),
    _NO_LEDGER,
)
IDLE_SHOWN = Declared(
    "wattserve_energy_idle_shared_joules_total",
    Kind.COUNTER,
    "joules",
    "Of the account `idle`: what receipts show as their idle share.",
    ("device",),
    _NO_LEDGER,
)
MEASURED = Declared(
    "wattserve_energy_measured_joules_total",
    Kind.COUNTER,
    "joules",
    "What the meter counted; whether by measuring, wattserve_meter_info says.",
    ("device",),
    _NO_LEDGER,
)
PENDING = Declared(
    "wattserve_energy_pending_joules",
    Kind.GAUGE,
    "joules",
    "Metered, not settled yet.",
    ("device",),
    _NO_LEDGER,
)

METER = Declared(
    "wattserve_meter_info",
    Kind.INFO,
    "always 1",
    "Where the energy figures come from; quality is measured, estimated, simulated or none.",
    ("device", "source", "method", "quality"),
)
METER_UP = Declared(
    "wattserve_meter_up", Kind.GAUGE, "0 or 1", "1 when the last read of the meter succeeded.", ("device",)
)
METER_READS = Declared(
    "wattserve_meter_reads_total", Kind.COUNTER, "reads", "Reads of the meter.", ("device",)
)
METER_FAILED_READS = Declared(
    "wattserve_meter_failed_reads_total", Kind.COUNTER, "reads", "Reads that failed.", ("device",)
)
LAST_READING = Declared(
    "wattserve_meter_last_reading_timestamp_seconds",
    Kind.GAUGE,
    "seconds since 1970",
    "When the meter was last read successfully.",
    ("device",),
    "until then; for ever without a meter",
)
LAST_CHANGE = Declared(
    "wattserve_meter_last_change_timestamp_seconds",
    Kind.GAUGE,
    "seconds since 1970",
    "When a reading last differed from the one before; a counter that stands still is read and does not "
    "change.",
    ("device",),
    _NO_LEDGER,
)
IDLE_WATTS = Declared(
    "wattserve_idle_watts",
    Kind.GAUGE,
    "watts",
    "The device's idle draw, in watts.",
    ("device",),
    "while it is not known",
)
POLL_PERIOD = Declared(
    "wattserve_meter_poll_period_seconds", Kind.GAUGE, "seconds", "How often the meter is read.", ("device",)
)
METER_LAG = Declared(
    "wattserve_meter_lag_seconds",
    Kind.GAUGE,
    "seconds",
    "From drawing energy to its being counted, as estimated.",
    ("device",),
    "while it is not known",
)
METER_RAMP = Declared(
    "wattserve_meter_ramp_seconds",
    Kind.GAUGE,
    "seconds",
    "Time constant of the device's rise and decay, as estimated.",
    ("device",),
    "while it is not known",
)
NEIGHBOURS = Declared(
    "wattserve_meter_neighbours",
    Kind.GAUGE,
    "processes",
    "Other processes on the metered device.",
    ("device",),
    "where the meter cannot tell",
)
METER_GAPS = Declared(
    "wattserve_meter_gaps_total",
    Kind.COUNTER,
    "gaps",
    "Intervals without a usable reading.",
    ("device",),
    _NO_LEDGER,
)
METER_GAP_SECONDS = Declared(
    "wattserve_meter_gap_seconds_total",
    Kind.COUNTER,
    "seconds",
    "How long they lasted; one that lasts still is not in it.",
    ("device",),
    _NO_LEDGER,
)
UPDATE_PERIOD = Declared(
    "wattserve_meter_update_period_seconds",
    Kind.GAUGE,
    "seconds",
    "Median time between updates of the sensor, at start-up.",
    ("device",),
    _NOT_FOUND,
)
EDGE_JITTER = Declared(
    "wattserve_meter_edge_jitter_seconds",
    Kind.GAUGE,
    "seconds",
    "Standard deviation of that time.",
    ("device",),
    _NOT_FOUND,
)
RESOLUTION = Declared(
    "wattserve_meter_resolution_joules",
    Kind.GAUGE,
    "joules",
    "The smallest step that explains all changes of the sensor, at start-up.",
    ("device",),
    _NOT_FOUND,
)
CROSS_CHECK = Declared(
    "wattserve_meter_cross_check_ratio",
    Kind.GAUGE,
    "ratio",
    "Counted energy less integrated power at start-up, relative to the latter.",
    ("device",),
    "but for a GPU's board with both figures",
)
READ_COST = Declared(
    "wattserve_meter_read_cost_seconds",
    Kind.GAUGE,
    "seconds",
    "What a read took at start-up.",
    ("device", "statistic"),
    _NOT_FOUND,
)
METER_PARTS = Declared(
    "wattserve_meter_part_joules_total",
    Kind.COUNTER,
    "joules",
    "What a part of the composite meter counted since it was opened. Its joules are in "
    "wattserve_energy_measured_joules_total too, which began after the start-up probe.",
    ("device", "part", "quality"),
    "but for a sum of meters",
)

_NO_BOARD = "but for a GPU metered by NVML that offers it"

# Named, and without prefix, as Triton's, for perf_analyzer --collect-metrics.
GPU_UTILIZATION = Declared(
    "nv_gpu_utilization",
    Kind.GAUGE,
    "share, 0 to 1",
    "Share of the last moments in which the GPU was computing, as its driver says.",
    ("gpu_uuid",),
    _NO_BOARD,
)
GPU_POWER = Declared(
    "nv_gpu_power_usage",
    Kind.GAUGE,
    "watts",
    "The GPU board's power, mostly the mean of the last second.",
    ("gpu_uuid",),
    _NO_BOARD,
)
GPU_MEMORY_USED = Declared(
    "nv_gpu_memory_used_bytes", Kind.GAUGE, "bytes", "The GPU's memory in use.", ("gpu_uuid",), _NO_BOARD
)
GPU_MEMORY_TOTAL = Declared(
    "nv_gpu_memory_total_bytes", Kind.GAUGE, "bytes", "The GPU's memory.", ("gpu_uuid",), _NO_BOARD
)

GROUPS: dict[str, tuple[Declared, ...]] = {
    "Queue and devices": (QUEUE, QUEUE_LIMIT, PENDING_RECEIPTS, DEVICE_BUSY),
    "Energy": (ACTIVE_ENERGY, SETTLED_SEQUENCES, SETTLED_TOKENS, ACCOUNTS, IDLE_SHOWN, MEASURED, PENDING),
    "Meters": (METER, METER_UP, METER_READS, METER_FAILED_READS, LAST_READING, LAST_CHANGE, METER_GAPS,
               METER_GAP_SECONDS, IDLE_WATTS, NEIGHBOURS, POLL_PERIOD, METER_LAG, METER_RAMP, METER_PARTS),
    "Meters, by the probe at start-up": (UPDATE_PERIOD, EDGE_JITTER, RESOLUTION, CROSS_CHECK, READ_COST),
    "Model and variants": (MODEL, VARIANT, VARIANT_READY, VARIANT_BYTES, VARIANT_WARMUP),
    "GPU boards": (GPU_UTILIZATION, GPU_POWER, GPU_MEMORY_USED, GPU_MEMORY_TOTAL),
}  # fmt: skip
"""All of them, as docs/metrics.md shows them."""
