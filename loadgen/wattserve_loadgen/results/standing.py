"""How a variant's precision stands: whether it is a proxy for one, and whether the server has seen it.

Reads variants as results.json keeps them, VariantInfo as plain JSON values; an older server states less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Standing:
    """`proxy`: empty, or what really runs in place of the precision. `verified`: None when the server does
    not say.
    """

    proxy: str = ""
    verified: bool | None = None

    def mark(self, variant: str) -> str:
        """The variant as a reader should see it named: `int8-simulated (proxy)`."""
        marks = ["proxy"] if self.proxy else []
        marks += ["unverified"] if self.verified is False else []
        return f"{variant} ({', '.join(marks)})" if marks else variant


UNSTATED = Standing()


def standing_of(variants: Sequence[Mapping[str, Any]], name: str) -> Standing:
    """Of the variant of that name. One that is not loaded has not been looked at: nothing is stated."""
    about = next((one for one in variants if one.get("name") == name), {})
    # A server that verifies at all says what it saw, or why it did not look.
    states = bool(about.get("verification")) and about.get("state", "ready") == "ready"
    return Standing(str(about.get("proxy") or ""), bool(about.get("verified")) if states else None)


def remarks(variants: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """A sentence for each of these variants that is not what its name says, or may not be."""
    found = []
    for name in names:
        standing = standing_of(variants, name)
        if standing.proxy:
            found.append(f"{name} is a proxy: {standing.proxy.rstrip('.')}.")
        if standing.verified is False:
            why = next(str(one["verification"]) for one in variants if one.get("name") == name)
            found.append(f"The precision of {name} is not verified: {why.rstrip('.')}.")
    return found
