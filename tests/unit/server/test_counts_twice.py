"""No joule is billed to two devices."""

from __future__ import annotations

import pytest
import torch

from wattserve_server.app import _check_no_joule_counts_twice
from wattserve_server.errors import ConfigError

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")


@pytest.mark.parametrize("part", ["rapl", "estimate"])
def test_the_host_of_two_gpus_is_not_billed_to_both(part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _check_no_joule_counts_twice(f"nvml+{part}", FIRST, [FIRST, SECOND])
    assert str(caught.value) == (
        f"--meter nvml+{part}: cuda:0 and cuda:1 would each be billed all that {part} counts of their one "
        f"host; leave {part} out, or serve one GPU"
    )


def test_the_host_is_not_billed_to_a_gpu_and_to_variants_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match="the joules of rapl would be billed twice; leave rapl out"):
        _check_no_joule_counts_twice("nvml+rapl", FIRST, [FIRST, CPU])


@pytest.mark.parametrize(
    ("meter", "main", "devices"),
    [
        ("nvml+rapl", FIRST, [FIRST]),
        ("nvml", FIRST, [FIRST, SECOND]),
        ("auto", FIRST, [FIRST, SECOND, CPU]),
        ("rapl", CPU, [CPU, FIRST, SECOND]),
    ],
)
def test_what_counts_each_joule_once_is_served(
    meter: str, main: torch.device, devices: list[torch.device]
) -> None:
    _check_no_joule_counts_twice(meter, main, devices)
