"""One server of a sweep: how to reach it, what it said it is, who says what a cell on it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wattserve_loadgen.errors import PlanError, TargetError
from wattserve_loadgen.results.codec import message_to_plain
from wattserve_loadgen.results.schema import TargetSummary
from wattserve_loadgen.sweeping.witness import Witness
from wattserve_loadgen.target.port import Target
from wattserve_proto.v1 import inference_pb2 as pb

_ASKED_AT_ONCE = 7
_RETRY_SECONDS = 0.5
_QUESTION_SECONDS = 5.0
# What makes a server the same one after a restart, as far as its figures go.
_IDENTITY = (
    "model_name",
    "model_source",
    "server_version",
    "hardware",
    "versions",
    "labels",
    "random_weights",
)
_VARIANT_IDENTITY = (
    "name", "device", "dtype", "native", "kernels", "detail", "proxy", "operands", "weights", "kept_layers",
    "tuning", "packs_tokens",
)  # fmt: skip


class ServerChanged(TargetError):
    """The server is not the one that the sweep started with. `restarted`: only its process is another."""

    def __init__(self, text: str, *, restarted: bool) -> None:
        super().__init__(text)
        self.restarted = restarted


@dataclass
class Site:
    """A server, and what the sweep keeps about it."""

    name: str
    target: Target
    info: pb.ServerInfo
    witness: Witness

    async def check(self) -> pb.ServerInfo:
        """What the server says it is now; ServerChanged when it is another one."""
        info = await self.target.server_info()
        change = difference(self.info, info)
        if change:
            raise ServerChanged(f"{self.target.address}: {change}", restarted=False)
        if info.instance_id != self.info.instance_id:
            text = f"{self.target.address} is another server now: it was restarted or replaced"
            raise ServerChanged(text, restarted=True)
        return info

    async def wait(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Whether the same model is served again within `seconds`, or now; ServerChanged when another one is.

        Whatever instance answers is the sweep's server from then on.
        """
        give_up = time.monotonic() + seconds
        while not stopped():
            try:
                info = await self.target.server_info(_QUESTION_SECONDS)
            except TargetError:
                if time.monotonic() >= give_up:
                    return False
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            change = difference(self.info, info)
            if change:
                raise ServerChanged(f"{self.target.address}: {change}", restarted=False)
            self.info = info
            return True
        return False

    def summary(self) -> TargetSummary:
        server = message_to_plain(self.info)
        return TargetSummary(
            name=self.name,
            address=self.target.address,
            protocol=self.target.protocol,
            server=server,
            meter=self.witness.meter(),
            meter_origin=self.witness.origin,
        )


def difference(then: pb.ServerInfo, now: pb.ServerInfo) -> str:
    """In words, what is different in a way that changes figures; "" for the same model in the same variants.

    A variant's state does not count: one that is not loaded yet says less of itself.
    """
    return plain_difference(message_to_plain(then), message_to_plain(now))


def plain_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """As `difference`, of the plain values of ServerInfo."""
    for name in _IDENTITY:
        if before.get(name) != after[name]:
            return f"its {name} was {_short(before.get(name))} and is {_short(after[name])} now"
    later = {one["name"]: one for one in after["variants"]}
    for one in before["variants"]:
        other = later.get(one["name"])
        if other is None:
            return f"the variant {one['name']} is gone"
        if one.get("state") != "ready" or other["state"] != "ready":
            continue
        for name in _VARIANT_IDENTITY:
            if one.get(name) != other[name]:
                return f"{one['name']}: {name} was {_short(one.get(name))} and is {_short(other[name])} now"
    return ""


async def check_one_server(target: Target, again: Callable[[], Target], info: pb.ServerInfo) -> None:
    """PlanError when fresh connections to the same name reach several servers: their figures would mix."""

    async def ask() -> str:
        other = again()
        try:
            return str((await other.server_info()).instance_id)
        finally:
            await other.close()

    found = {info.instance_id, *await asyncio.gather(*(ask() for _ in range(_ASKED_AT_ONCE)))}
    if len(found) > 1:
        raise PlanError(
            f"{target.address}: {len(found)} servers answer to this name in turns (by their instance_id):"
            " name one of them"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
