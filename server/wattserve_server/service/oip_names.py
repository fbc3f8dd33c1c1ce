"""Models by the names that the Open Inference Protocol gives them.

`NAME` is the hosted model and stands for its default variant; `NAME@VARIANT` is one variant. There is one
version, "1": a precision is no version, and clients read versions as whole numbers.
"""

from __future__ import annotations

from wattserve_server.engine.engine import Engine
from wattserve_server.engine.roster import Entry
from wattserve_server.errors import InvalidRequest, NotFound
from wattserve_server.service.checks import shown

VERSION = "1"


def alias(engine: Engine, variant: str) -> str:
    """The name of one variant."""
    return f"{engine.model.name}@{variant}"


def alias_of(engine: Engine, name: str, version: str, field: str) -> str | None:
    """The variant that a model's name holds; None for the plain name. Raises NotFound or InvalidRequest,
    naming `field`."""
    if version not in ("", VERSION):
        if not version.isdecimal():
            raise InvalidRequest(
                f"version {shown(version)}: a version is a whole number, here {VERSION!r} or none; a "
                'variant is chosen by the parameter "variant" or the name MODEL@VARIANT',
                "model_version" if field == "model_name" else "version",
            )
        raise NotFound(
            f"version {shown(version)}: this server has version {VERSION!r} only",
            "model_version" if field == "model_name" else "version",
        )
    own = engine.model.name
    if name == own:
        return None
    prefix, variant = name[: len(own) + 1], name[len(own) + 1 :]
    if prefix != f"{own}@":
        raise NotFound(
            f"unknown model {shown(name)}; this server has {own!r}, and each variant as {own}@VARIANT", field
        )
    if variant not in engine.roster.names:
        raise NotFound(
            f"unknown variant {shown(variant)} of {own!r}; this server has {', '.join(engine.roster.names)}",
            field,
        )
    return variant


def entry_of(engine: Engine, name: str, version: str, field: str) -> Entry:
    """The variant that a name stands for. Raises as `alias_of`."""
    return engine.roster.named(alias_of(engine, name, version, field) or engine.default_variant)


def variants_of(engine: Engine, name: str, version: str, field: str) -> tuple[str, ...]:
    """Whose requests are counted under a name: the plain one's are everybody's. Raises as `alias_of`."""
    variant = alias_of(engine, name, version, field)
    return engine.roster.names if variant is None else (variant,)
