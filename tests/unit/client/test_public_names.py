"""What a program may use of the client, by name: one that goes, or is spelled otherwise, breaks programs.

`python -m tests.unit.client.test_public_names` writes the list anew; do it only for a name that comes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

import wattserve_client
from wattserve_client import testing

LIST = Path(__file__).with_name("public_names.txt")


def public_names() -> str:
    return "".join(f"{line}\n" for module in (wattserve_client, testing) for line in lines(module))


def lines(module: ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        value = getattr(module, name)
        prefix = f"{module.__name__}.{name}"
        if not inspect.isclass(value):
            yield prefix
            continue
        created = "" if issubclass(value, Enum) else f"({', '.join(inspect.signature(value).parameters)})"
        yield f"{prefix}{created}"
        for member in sorted(dir(value)):
            if member.startswith("_") or hasattr(Exception, member) or hasattr(str, member):
                continue
            attribute = inspect.getattr_static(value, member)
            taken = (
                list(inspect.signature(attribute).parameters)[1:] if inspect.isfunction(attribute) else None
            )
            yield f"    {member}" + ("" if taken is None else f"({', '.join(taken)})")


def test_nothing_that_programs_use_is_gone_or_spelled_otherwise() -> None:
    assert public_names().splitlines() == LIST.read_text().splitlines()


if __name__ == "__main__":
    LIST.write_text(public_names())
