"""The servers of a sweep: opened, checked to be the ones they were, waited for when they are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from wattserve_client import ServerInfo, Tls, VariantState
from wattserve_client.errors import in_shared_flags
from wattserve_loadgen import words
from wattserve_loadgen.errors import PlanError, RefusedError, TargetError
from wattserve_loadgen.model.codec import as_stored
from wattserve_loadgen.model.results import TargetSummary
from wattserve_loadgen.model.server_info import difference
from wattserve_loadgen.plan.options import Peer, SweepOptions
from wattserve_loadgen.sweeping.energy import FleetWitness, LedgerWitness, OwnMeterWitness, Witness
from wattserve_loadgen.sweeping.environment import is_this_machine
from wattserve_loadgen.sweeping.readings import SweepClock
from wattserve_loadgen.target.fleet import Fleet
from wattserve_loadgen.target.oip import OipTarget
from wattserve_loadgen.target.wattserve import NativeTarget

SERVER = "server"  # the name of the one that is no peer
_ASKED_AT_ONCE = 7
_CONNECT_S = 10.0
_RETRY_S = 0.5
_QUESTION_S = 5.0
_LOADING_S = 600.0  # for which a server may still load variants before the first cell
_COMING = (VariantState.LOADING, VariantState.CALIBRATING)
_MOST_LOSSES = 3  # a server that dies of a cell would die of it for ever
# What is loaded. Its answers are read in the native protocol's messages, whatever was spoken on the wire.
Target = NativeTarget | OipTarget | Fleet
Outcome = TypeVar("Outcome")


class ServerChanged(TargetError):
    """The server is not the one that the sweep started with. `restarted`: only its process is another."""

    def __init__(self, text: str, *, restarted: bool) -> None:
        super().__init__(text)
        self.restarted = restarted


class SweepOver(Exception):
    """The sweep cannot go on; its text says why, for results. Raised from the TargetError that led to it."""


@dataclass
class Site:
    """A server, and what the sweep keeps about it."""

    name: str
    target: Target
    info: ServerInfo
    witness: Witness

    async def check(self) -> None:
        """Ask what the server is now; ServerChanged when it is another one."""
        info = await self.target.server_info()
        self._check_model(info)
        if info.instance_id != self.info.instance_id:
            text = f"{self.target.address} is another server now: it was restarted or replaced"
            raise ServerChanged(text, restarted=True)
        self.info = info

    async def wait(self, limit_s: float, stopped: Callable[[], str]) -> bool:
        """Whether the same model is served again within `limit_s`, or now, and all of it has been loaded;
        ServerChanged when another one is.

        Whatever instance answers is the sweep's server from then on.
        """
        give_up = time.monotonic() + limit_s
        info: ServerInfo | None
        while not stopped():
            try:
                info = await self.target.server_info(_QUESTION_S)
            except TargetError:
                info = None
            if info is not None:
                self._check_model(info)
                if not coming(info):
                    self.info = info
                    return True
            if time.monotonic() >= give_up:
                return False
            await asyncio.sleep(_RETRY_S)
        return False

    def _check_model(self, info: ServerInfo) -> None:
        """ServerChanged when another model is served, or other variants of it."""
        change = difference(as_stored(self.info), as_stored(info))
        if change:
            raise ServerChanged(f"{self.target.address}: {change}", restarted=False)

    def summary(self) -> TargetSummary:
        return TargetSummary(
            name=self.name,
            address=self.target.address,
            protocol=self.target.protocol,
            server=as_stored(self.info),
            meter=self.witness.meter(),
            meter_origin=self.witness.origin,
        )


async def see_through(
    site: Site,
    what: str,
    action: Callable[[], Awaitable[Outcome]],
    *,
    limit_s: float,
    stopped: Callable[[], str],
    heat_up: Callable[[Site], Awaitable[None]],
    tell: Callable[[str], None],
    note: Callable[[str], None],
) -> Outcome:
    """Do it, and once more after each time that the server was lost in it and came back; else SweepOver.

    `what`: for the user, whom `tell` tells, and for the results, which `note` notes. `limit_s`: how long to
    wait for a server. `stopped`: what interrupted the sweep, or "". `heat_up`: every arm of a server that is
    there again.
    """
    for losses in range(1, _MOST_LOSSES + 1):
        try:
            if losses > 1:
                await heat_up(site)
            return await action()
        except TargetError as error:
            cause = error.__cause__ if isinstance(error.__cause__, TargetError) else error
            if isinstance(cause, RefusedError):
                raise SweepOver(str(error)) from error
            if losses == _MOST_LOSSES:
                text = f"the server was lost {losses} times in a row ({what}): {error}"
                raise SweepOver(text) from error
            if isinstance(cause, ServerChanged) and not cause.restarted:
                raise SweepOver(f"the server changed: {error}") from error
            began = time.monotonic()
            if limit_s > 0:
                waiting = words.duration(limit_s)
                tell(f"{error}; waiting up to {waiting} for the same model there")
            try:
                is_there = await site.wait(limit_s, stopped)
            except ServerChanged as change:
                raise SweepOver(f"the server changed: {change}") from error
            if not is_there:
                raise SweepOver(stopped() or f"the server was lost: {error}") from error
            waited_s = time.monotonic() - began
            text = f"{error}. The same model was there again after {waited_s:.0f} s: {what} ran again"
            tell(text)
            note(text)
    raise AssertionError("the last loss ends it")


def coming(info: ServerInfo) -> str:
    """Which variants a server is still loading, in words; loading any would disturb what is measured."""
    return ", ".join(f"{each.name} is {each.state}" for each in info.variants if each.state in _COMING)


async def until_loaded(target: Target, info: ServerInfo, tell: Callable[[str], None]) -> ServerInfo:
    """What the server is once it has loaded its variants; TargetError when that takes too long."""
    give_up = time.monotonic() + _LOADING_S
    if what := coming(info):
        tell(f"waiting up to {words.duration(_LOADING_S)} for {target.address} to load its variants: {what}")
    while what := coming(info):
        if time.monotonic() >= give_up:
            raise TargetError(f"{target.address} has not loaded its variants in time: {what}")
        await asyncio.sleep(_RETRY_S)
        info = await target.server_info(_CONNECT_S)
    return info


def plain_variants(info: ServerInfo) -> list[dict[str, Any]]:
    """The variants' descriptions as results.json keeps them."""
    return [as_stored(variant) for variant in info.variants]


async def check_one_server(target: Target, again: Callable[[], Target], info: ServerInfo) -> None:
    """PlanError when fresh connections to the same name reach several servers: their figures would mix."""

    async def ask() -> str:
        other = again()
        try:
            return str((await other.server_info()).instance_id)
        finally:
            await other.close()

    instances = {info.instance_id, *await asyncio.gather(*(ask() for _ in range(_ASKED_AT_ONCE)))}
    if len(instances) > 1:
        raise PlanError(
            f"{target.address}: {len(instances)} servers answer to this name in turns (by their instance_id):"
            " name one of them"
        )


async def open_sites(
    options: SweepOptions,
    stack: AsyncExitStack,
    scratch: Path,
    clock: SweepClock,
    tell: Callable[[str], None],
) -> dict[str, Site]:
    """Every server of the sweep by its name; TargetError when one does not answer. `scratch`: a folder for
    recordings of a meter that loadgen reads itself. `tell`: the user, what is waited for.
    """
    tls = read_tls(options)
    sites = {}
    if options.target:
        sites[SERVER] = await _open_server(options, tls, stack, clock, tell)
    for peer in options.peers:
        if peer.name in sites:
            raise PlanError(f"two servers are called {peer.name!r}; give the peer another name")
        sites[peer.name] = await _open_peer(peer, tls, stack, scratch, clock, start=not options.dry_run)
    if not sites:
        raise PlanError("no server to measure: give --target HOST:PORT, or --peer")
    return sites


async def _open_server(
    options: SweepOptions,
    tls: Tls | None,
    stack: AsyncExitStack,
    clock: SweepClock,
    tell: Callable[[str], None],
) -> Site:
    def connect(address: str) -> NativeTarget:
        return NativeTarget(address, stream=options.stream, tls=tls, api_key_file=options.api_key_file)

    members: list[tuple[NativeTarget, ServerInfo]] = []
    for address in options.target.split(","):
        member = connect(address)
        stack.push_async_callback(member.close)
        info = await member.server_info(_CONNECT_S)
        await member.energy_report()  # which a key without the right `read-all` may not ask for
        await check_one_server(member, partial(connect, address), info)
        if not options.dry_run:
            info = await until_loaded(member, info, tell)
        members.append((member, info))
    target, info = members[0]
    if len(members) == 1:
        return Site(SERVER, target, info, LedgerWitness(target, SERVER, info, clock))
    fleet = Fleet([member for member, _ in members])
    witnesses = [LedgerWitness(member, SERVER, own, clock, member.address) for member, own in members]
    return Site(SERVER, fleet, await fleet.server_info(_CONNECT_S), FleetWitness(fleet, witnesses))


async def _open_peer(
    peer: Peer, tls: Tls | None, stack: AsyncExitStack, scratch: Path, clock: SweepClock, *, start: bool
) -> Site:
    """`start`: its meter."""
    target = OipTarget(peer.address, ",".join(peer.models), tls=tls and replace(tls, server_name=""))
    stack.push_async_callback(target.close)
    info = await target.server_info(_CONNECT_S)
    if not peer.meter:
        reason = f"no meter is read for {peer.name}: --peer-meter names one of its machine"
        return Site(peer.name, target, info, Witness(reason))
    if not is_this_machine(peer.address):
        raise PlanError(
            f"--peer-meter {peer.meter}: loadgen reads the meters of its own machine, and {peer.name} is at"
            f" {peer.address}; run loadgen there, or leave the meter out"
        )
    witness = OwnMeterWitness(peer, scratch, clock)
    stack.push_async_callback(witness.close)
    if start:
        await witness.start()
    return Site(peer.name, target, info, witness)


def read_tls(options: SweepOptions) -> Tls | None:
    """None: plain text. PlanError when a file cannot be read or is of no use."""
    if not (options.tls or options.tls_ca or options.tls_cert or options.tls_server_name):
        return None
    tls = Tls(options.tls_ca, options.tls_cert, options.tls_key, options.tls_server_name)
    try:
        tls.read()
    except OSError as error:
        raise PlanError(f"{error.filename}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PlanError(in_shared_flags(str(error))) from None
    return tls
