"""Models by the names that the Open Inference Protocol gives them.

`NAME` is the hosted model and stands for its default variant; `NAME@VARIANT` is one variant. There is one
version, "1": a precision is no version, and clients read versions as whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattserve_server.engine.engine import Engine
from wattserve_server.engine.roster import Entry
from wattserve_server.errors import InvalidRequest, NotFound
from wattserve_server.service.checks import shown

VERSION = "1"


def alias(engine: Engine, variant: str) -> str:
    """The name of one variant."""
    return f"{engine.model.name}@{variant}"


@dataclass(frozen=True, slots=True)
class Fields:
    """Where a message holds a model's name and version."""

    name: str
    version: str


INFERRED = Fields("model_name", "model_version")
DESCRIBED = Fields("name", "version")
LOADED = Fields("model_name", "")


def alias_of(engine: Engine, name: str, version: str, fields: Fields) -> str | None:
    """The variant that a model's name holds; None for the plain name. Raises NotFound or InvalidRequest."""
    if version not in ("", VERSION):
        if not version.isdecimal():
            raise InvalidRequest(
                f"version {shown(version)}: a version is a whole number, here {VERSION!r} or none; a "
                'variant is chosen by the parameter "variant" or the name MODEL@VARIANT',
                fields.version,
            )
        raise NotFound(f"version {shown(version)}: this server has version {VERSION!r} only", fields.version)
    own = engine.model.name
    if name == own:
        return None
    prefix, variant = name[: len(own) + 1], name[len(own) + 1 :]
    if prefix != f"{own}@":
        raise NotFound(
            f"unknown model {shown(name)}; this server has {own!r}, and each variant as {own}@VARIANT",
            fields.name,
        )
    if variant not in engine.roster.names:
        known = ", ".join(engine.roster.names)
        raise NotFound(f"unknown variant {shown(variant)} of {own!r}; this server has {known}", fields.name)
    return variant


def entry_of(engine: Engine, name: str, version: str, fields: Fields) -> Entry:
    """The variant that a name stands for. Raises as `alias_of`."""
    return engine.roster.named(alias_of(engine, name, version, fields) or engine.default_variant)
