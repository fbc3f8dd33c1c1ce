"""A meter's source as a message."""

from __future__ import annotations

import functools

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Quality, Source

_QUALITIES = {
    Quality.MEASURED: pb.ENERGY_QUALITY_MEASURED,
    Quality.ESTIMATED: pb.ENERGY_QUALITY_ESTIMATED,
    Quality.SIMULATED: pb.ENERGY_QUALITY_SIMULATED,
    Quality.NONE: pb.ENERGY_QUALITY_NONE,
}


@functools.lru_cache(maxsize=16)  # every receipt needs it, and a meter has one or two in its life
def source_message(source: Source) -> pb.EnergySource:
    """Shared: copy it rather than change it."""
    return pb.EnergySource(
        name=source.name,
        method=source.method,
        quality=_QUALITIES[source.quality],
        note=source.note,
        boundary=source.boundary,
    )
