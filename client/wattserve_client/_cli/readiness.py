"""Whether a server is ready, and the variants that somebody waits for."""

from __future__ import annotations

from typing import NamedTuple

from wattserve_client._cli.words import CommandError
from wattserve_client.client import Client
from wattserve_client.errors import DeadlineExceeded, Unavailable
from wattserve_client.reports import Variant, VariantState

COMING = (VariantState.LOADING, VariantState.CALIBRATING)  # states that end by themselves


class Readiness(NamedTuple):
    is_ready: bool
    is_final: bool  # waiting changes nothing
    reason: str  # why it is not ready, or which variants will never be


def readiness(server: Client, within_s: float, *, of_all: bool, variant: str) -> Readiness:
    """Whether it takes requests; and is that variant ready, or, where none is named, all of them are that can
    be. variant: empty for none. Raises CommandError for one that the server does not have."""
    if why := server._why_not_ready(within_s):
        return Readiness(False, False, why)
    if not (of_all or variant):
        return Readiness(True, True, "")
    try:
        found = {each.name: each for each in server.server_info(timeout_s=within_s).variants}
    except (Unavailable, DeadlineExceeded) as error:
        return Readiness(False, False, error.message)
    if not variant:
        return _of_all([*found.values()])
    if variant not in found:
        raise CommandError(f"unknown variant {variant!r}; this server has {', '.join(found)}")
    return _of_one(found[variant])


def _of_all(variants: list[Variant]) -> Readiness:
    """One that is not loaded, nor being loaded, is not waited for: a request or a person loads it."""
    coming = [f"{each.name} is {each.state}" for each in variants if each.state in COMING]
    if coming:
        return Readiness(False, False, ", ".join(coming))
    failed = [_failure(each) for each in variants if each.state is VariantState.FAILED]
    return Readiness(True, True, "; ".join(failed))


def _of_one(variant: Variant) -> Readiness:
    if variant.state is VariantState.READY:
        return Readiness(True, True, "")
    if variant.state is VariantState.FAILED:
        return Readiness(False, True, _failure(variant))
    return Readiness(False, False, f"{variant.name} is {variant.state}")


def _failure(variant: Variant) -> str:
    return f"{variant.name} has failed: {variant.state_reason}"
