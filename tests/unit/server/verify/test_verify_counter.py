"""Which counter is verified where a device has several, and what of a receipt is held against it."""

from __future__ import annotations

import torch

from wattserve_server.config import ServerConfig
from wattserve_server.devices import MeteredDevice
from wattserve_server.energy.receipt import ACCELERATOR, HOST, Charge, Line, Outcome, Receipt
from wattserve_server.verify.machine import verified
from wattserve_server.verify.rig import Asked


def test_of_a_sum_the_accelerators_counter_is_verified_by_a_meter_of_its_own() -> None:
    device = MeteredDevice(ServerConfig(meter="estimate+simulated"), torch.device("cpu"), is_main=True)
    counter = verified(device)
    again = device.open_again(counter.part)
    assert (counter.meter.source.name, again.source.name) == ("simulated", "simulated")
    assert again is not counter.meter


def test_a_counter_is_held_against_its_own_part_of_a_receipt() -> None:
    receipt = Receipt("r-1", "", "fp32", "cuda:0", 0, (ACCELERATOR, HOST))
    line = Line(receipt, 5)
    receipt.lines.append(line)
    line.enter(1)
    asked = Asked("fp32", (1, 5), 0, 1, receipt, ACCELERATOR)
    receipt.charge(Charge(line, 1000, 30.0, 4), ACCELERATOR)
    assert asked.settled_uj is None  # the request goes on
    receipt.end(Outcome.COMPLETED)
    assert asked.settled_uj == 1000
    receipt.charge(Charge(line, 500, 40.0, 3), HOST)
    assert asked.settled_uj == 1000
