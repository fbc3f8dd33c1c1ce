"""docs/reference/cli.md, from the argparse parsers of the three programs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import wattserve_client.cli
import wattserve_loadgen.cli
import wattserve_tools.cli
from tests.docs.reference import NOTE, table
from wattserve_loadgen.option import options_of
from wattserve_loadgen.plan.options import LoadOptions, RunOptions, SweepOptions

_HEAD = f"""\
# Command line

{NOTE}

Three programs: [`wattserve`](#wattserve) serves and inspects models, [`loadgen`](#loadgen) measures a server,
[`wattserve-client`](#wattserve-client) asks one. Each says the same with `--help`.

Exit codes: 0 done; 2 a mistake in the arguments, the settings or the input, told in one line; 130 Ctrl-C
(`wattserve serve` drains and ends with 0, or with 1 where its account book or audit file could not be
written to the end). `loadgen run` and `loadgen sweep` end with 1 when the server was lost or answered
nothing, `loadgen validate` and `wattserve audit recompute` with 1 when a check fails, `wattserve-client`
with 1 when the server refused, is out of reach, or a line of a file failed.

Settings that `wattserve`'s commands share are explained in [Configuration](configuration.md). What stands in
square brackets may be left out.
"""

_PLAN_FILES = """\
## Plan files of loadgen

The keys of a file for `--plan` of `loadgen sweep`, and of `loadgen run` (`variant`, and no `variants` or
`find-max`). Each means what the flag of its name means. Loads may also be listed one by one, as in the
`plan.toml` of a results folder.
"""


def page() -> str:
    parts = [_HEAD]
    for module in (wattserve_tools.cli, wattserve_loadgen.cli, wattserve_client.cli):
        for level, parser in _walk(module._parser(), 2):
            parts.append("\n".join(_section(level, parser)) + "\n")
    parts.append("\n".join([_PLAN_FILES, *table(["key", "value"], _plan_file_keys())]) + "\n")
    return "\n".join(parts)


def _plan_file_keys() -> list[list[str]]:
    options = options_of(SweepOptions, LoadOptions) | options_of(RunOptions)
    return [
        [f"`{key}`", item.metadata["kind"].form] for key, item in options.items() if item.metadata["in_file"]
    ]


def _walk(parser: argparse.ArgumentParser, level: int) -> Iterator[tuple[int, argparse.ArgumentParser]]:
    yield level, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _walk(child, level + 1)


def _section(level: int, parser: argparse.ArgumentParser) -> list[str]:
    lines = [f"{'#' * min(level, 4)} {parser.prog}", ""]
    if parser.description:
        lines += [_escaped(parser.description.rstrip()).replace("<", "&lt;"), ""]
    lines += ["```text", _usage(parser), "```", ""]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            rows = [[_link(child.prog), helps[name]] for name, child in action.choices.items()]
            lines += [*table(["command", ""], rows), ""]
    for group in parser._action_groups:
        rows = [
            [f"`{_shown(each)}`", _help(parser, each)] for each in group._group_actions if _is_listed(each)
        ]
        if rows:
            title = group.title if group.title not in ("options", "positional arguments") else ""
            lines += [*([f"*{title}*", ""] if title else []), *table(["argument", "meaning"], rows), ""]
    if parser.epilog:
        lines += ["```text", parser.epilog.rstrip(), "```", ""]
    return lines[:-1]


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    exclusive = {id(each) for group in parser._mutually_exclusive_groups for each in group._group_actions}
    for group in parser._mutually_exclusive_groups:
        words.append("(" + " | ".join(_shown(each) for each in group._group_actions) + ")")
    named = [each for each in parser._actions if each.option_strings and _is_listed(each)]
    words += [_shown(each) for each in named if each.required and id(each) not in exclusive]
    if any(not each.required and id(each) not in exclusive for each in named):
        words.append("[OPTIONS]")
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            words.append("COMMAND ..." if each.required else "[COMMAND ...]")
        elif not each.option_strings:
            words.append(f"[{_value(each)} ...]" if each.nargs == "*" else _value(each))
    return " ".join(words)


def _value(action: argparse.Action) -> str:
    if action.choices and not action.metavar:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _shown(action: argparse.Action) -> str:
    value = _value(action)
    name = ", ".join(action.option_strings) or value
    if action.nargs == 0 or not action.option_strings:
        return name
    return f"{name} [{value}]" if action.nargs == "?" else f"{name} {value}"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = (action.help or "") % {"prog": parser.prog, "default": action.default}
    return _escaped(text) + (" **Required.**" if action.required and action.option_strings else "")


def _is_listed(action: argparse.Action) -> bool:
    return not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)


def _link(prog: str) -> str:
    return f"[`{prog}`](#{prog.replace(' ', '-')})"


def _escaped(text: str) -> str:
    return text.replace("*", "\\*")
