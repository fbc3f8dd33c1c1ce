"""docs/reference/protocol.md, from the text of the two .proto files: methods, messages, fields, comments.

The files' own style is what is understood: one declaration a line, `//` above it or behind it. A line of a
comment alone that stands under such a comment, or further in, goes on with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.docs.reference import FOLDER, NOTE, table

PROTO = FOLDER.parents[1] / "proto" / "wattserve_proto"
_OPENS = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?$")
_METHOD = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);$")
_FIELD = re.compile(r"(?:(optional|repeated) )?([\w<>, ]*?) ?(\w+) = (\d+);$")

_HEAD = f"""\
# Protocol

{NOTE}

Two services over gRPC on one port, beside `grpc.health.v1.Health` and reflection: the native one, and the
Open Inference Protocol v2. Errors of both are in [Calling Wattserve](../clients.md#errors); how the second
behaves is in [Coming from Triton or KServe](../triton.md).
"""


@dataclass
class Entry:
    """A declaration: a service, message, enum, or one of their lines. kind: of a field its type."""

    kind: str
    name: str
    number: str = ""
    group: str = ""  # the oneof that a field belongs to
    comment: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def words(self) -> str:
        return " ".join(self.comment)


def read(text: str) -> list[Entry]:
    """The top-level declarations."""
    root = Entry("file", "")
    open_ones, above, behind = [root], list[str](), -1
    for line in text.splitlines():
        code, _, comment = line.partition("//")
        code, comment, column = code.strip(), comment.strip(), line.find("//")
        if not code:
            if comment and behind > 0 and column >= behind:
                open_ones[-1].entries[-1].comment.append(comment)
                continue
            above, behind = ([*above, comment] if comment else []), -1
            continue
        said, above = above + ([comment] if comment else []), []
        behind = column if comment else -1
        opens, method, item = _OPENS.match(code), _METHOD.match(code), _FIELD.match(code)
        if opens:
            entry = Entry(opens[1], opens[2], comment=said)
            open_ones[-1].entries.append(entry)
            if not opens[3]:
                open_ones.append(entry)
        elif code == "}":
            open_ones.pop()
        elif method:
            kind = f"{method[2] or ''}{method[3]} → {method[4] or ''}{method[5]}"
            open_ones[-1].entries.append(Entry(kind, method[1], comment=said))
        elif item:
            kind = f"{item[1]} {item[2]}" if item[1] else item[2]
            open_ones[-1].entries.append(Entry(kind, item[3], item[4], comment=said))
        elif not code.startswith(("syntax", "package")):
            raise ValueError(f"not understood: {line}")
    return root.entries


def page() -> str:
    native, oip = ((PROTO / name).read_text() for name in ("v1/inference.proto", "oip/open_inference.proto"))
    parts = [_HEAD, _services(read(native), "wattserve.v1.Inference", "v1/inference.proto")]
    parts += [_message(each) for each in read(native) if each.kind != "service"]
    parts.append(_services(read(oip), "inference.GRPCInferenceService", "oip/open_inference.proto"))
    rows = [
        [f"`{name}`", ", ".join(_brief(item) for item in _flat(each)) or "-"]
        for each in read(oip)
        for name, each in _nested(each)
    ]
    about = "Names and numbers are KServe's and Triton's; of the model configuration, what this server fills."
    parts.append("\n".join([about, "", *table(["message", "fields = number"], rows)]) + "\n")
    return "\n".join(parts)


def _services(entries: list[Entry], name: str, file: str) -> str:
    (service,) = (each for each in entries if each.kind == "service")
    rows = [[f"`{each.name}`", _arrow(each.kind), each.words] for each in service.entries]
    link = f"[`proto/wattserve_proto/{file}`](../../proto/wattserve_proto/{file})"
    heads = (
        ["method", "request → answer", ""] if any(row[2] for row in rows) else ["method", "request → answer"]
    )
    shown = table(heads, [row[: len(heads)] for row in rows])
    return "\n".join([f"## `{name}`", "", f"{link}.", "", *shown]) + "\n"


def _arrow(kind: str) -> str:
    return " → ".join(
        f"{'stream of ' if each.startswith('stream ') else ''}`{each.removeprefix('stream ')}`"
        for each in kind.split(" → ")
    )


def _message(entry: Entry) -> str:
    lines = [f"### {entry.name}", ""]
    if entry.comment:
        lines += [entry.words.replace("<", "&lt;"), ""]
    if entry.kind == "enum":
        values = [[f"`{each.name}`", each.number, each.words] for each in entry.entries]
        return "\n".join(lines + table(["value", "number", "meaning"], values)) + "\n"
    rows = []
    for each in _flat(entry):
        group = f"*one of `{each.group}`.* " if each.group else ""
        rows.append([f"`{each.name}`", f"`{each.kind}`", each.number, group + each.words])
    shown = table(["field", "type", "number", "meaning"], rows) if rows else ["No fields."]
    return "\n".join(lines + shown) + "\n"


def _flat(entry: Entry, group: str = "") -> Iterator[Entry]:
    """The fields, those of a oneof among them."""
    for each in entry.entries:
        if each.kind == "oneof":
            yield from _flat(each, each.name)
        elif each.kind not in ("message", "enum"):
            each.group = group
            yield each


def _nested(entry: Entry, above: str = "") -> Iterator[tuple[str, Entry]]:
    if entry.kind in ("message", "enum"):
        yield above + entry.name, entry
        for each in entry.entries:
            yield from _nested(each, f"{above}{entry.name}.")


def _brief(item: Entry) -> str:
    text = f"`{item.kind} {item.name}` = {item.number}" if item.kind else f"`{item.name}` = {item.number}"
    return text + (f" ({item.words})" if item.comment else "")
