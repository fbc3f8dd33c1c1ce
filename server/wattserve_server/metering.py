"""Opens the meter that the settings ask for. Knows the settings' names and no meter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wattserve_server.config import ServerConfig
from wattserve_server.meters.choose import ChosenMeter, MeterOptions, open_meter

FOR_ANY_DEVICE = ("auto", "simulated", "none")


def open_configured(
    config: ServerConfig,
    *,
    device_type: str,
    device_uuid: str | None,
    busy_ns: Callable[[], int],
    is_main: bool = True,
) -> ChosenMeter:
    """See `open_meter`, whose errors are raised.

    is_main: whether the device is the one that --meter is meant for; another one gets the same meter where
    that fits any device, and else the best that is honest about it.
    """
    choice = config.meter if is_main or config.meter in FOR_ANY_DEVICE else "auto"
    options = MeterOptions(
        estimate_watts_per_core=config.estimate_watts_per_core,
        estimate_idle_watts=config.estimate_idle_watts,
        simulated_idle_watts=config.simulated_idle_watts,
        simulated_busy_watts=config.simulated_busy_watts,
        powercap_root=Path(config.powercap_root),
        replay_file=Path(config.replay_file) if config.replay_file else None,
    )
    return open_meter(
        choice,
        device_type=device_type,
        device_uuid=device_uuid,
        busy_ns=busy_ns,
        options=options,
    )
