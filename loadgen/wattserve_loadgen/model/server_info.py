"""What a server said of its variants and of its sensor, as results.json keeps it: VariantInfo and MeterInfo
as plain JSON values, of which an older server states less. Knows no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Standing:
    """How a variant's precision stands: whether it is a proxy for one, and whether the server has seen it."""

    proxy: str = ""  # empty, or what really runs in place of the precision
    verified: bool | None = None  # None: the server does not say

    def mark(self, variant: str) -> str:
        """The variant as a reader should see it named: `int8-simulated (proxy)`."""
        marks = ["proxy"] if self.proxy else []
        marks += ["unverified"] if self.verified is False else []
        return f"{variant} ({', '.join(marks)})" if marks else variant


UNSTATED = Standing()


def standing_of(about: Mapping[str, Any]) -> Standing:
    """Of a variant. One that is not loaded has not been looked at: nothing is stated."""
    # A server that verifies at all says what it saw, or why it did not look.
    states = bool(about.get("verification")) and about.get("state", "ready") == "ready"
    return Standing(str(about.get("proxy") or ""), bool(about.get("verified")) if states else None)


def remarks(variants: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """A sentence for each of these variants that is not what its name says, or may not be."""
    sentences = []
    by_name = {variant.get("name"): variant for variant in variants}
    for name in names:
        about = by_name.get(name, {})
        standing = standing_of(about)
        if standing.proxy:
            sentences.append(f"{name} is a proxy: {standing.proxy.rstrip('.')}.")
        if standing.verified is False:
            why = str(about["verification"])
            sentences.append(f"The precision of {name} is not verified: {why.rstrip('.')}.")
    return sentences


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """In words, what is different between two ServerInfos in a way that changes figures; "" for the same
    model in the same variants.

    A variant's state does not count: one that is not loaded yet says less of itself.
    """
    for name in _IDENTITY:
        if before.get(name) != after[name]:
            return f"its {name} was {_short(before.get(name))} and is {_short(after[name])} now"
    was, is_now = before.get("weights_digest"), after.get("weights_digest")
    if was and is_now and was != is_now:  # an older server states none
        return f"its weights_digest was {_short(was)} and is {_short(is_now)} now: these are other weights"
    later = {variant["name"]: variant for variant in after["variants"]}
    for variant in before["variants"]:
        now = later.get(variant["name"])
        if now is None:
            return f"the variant {variant['name']} is missing"
        if variant.get("state") != "ready" or now["state"] != "ready":
            continue
        for name in _VARIANT_IDENTITY:
            if variant.get(name) != now[name]:
                was, is_now = _short(variant.get(name)), _short(now[name])
                return f"{variant['name']}: {name} was {was} and is {is_now} now"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def charged_by(meter: Mapping[str, Any]) -> set[str]:
    """The devices on whose requests a meter's joules are: its own, and those with which it is shared."""
    return {str(meter.get("device") or ""), *(meter.get("shared_by") or [])}


def sensor_period_seconds(meter: Mapping[str, Any]) -> float | None:
    """How often a reading can bring something new: the sensor's own period or the poll's, the longer. None
    without a meter.
    """
    periods = [meter.get(name) for name in ("update_period_seconds", "poll_period_seconds")]
    return max((float(period) for period in periods if period), default=None)


def cross_checks(meter: Mapping[str, Any]) -> str:
    """The sensor's counter against its own power, integrated over the same time, as the server's probe found
    them when it started; "" where it did not look.
    """
    return "; ".join(map(_cross_check, (meter.get("probe") or {}).get("cross_checks") or []))


def _cross_check(check: Mapping[str, Any]) -> str:
    counter, power = check["counter_joules"], check["power_joules"]
    difference = f" ({(counter / power - 1) * 100:+.1f} %)" if power > 0 else ""
    return f"{counter:.2f} J against {power:.2f} J over {check['window_seconds']:.2f} s{difference}"
