"""The commands of `wattserve-client`: each asks the server, prints what it said, returns the exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from wattserve_client._cli import show, words
from wattserve_client._cli.errors_told import CliError, UsageError, told
from wattserve_client._cli.ledger_table import elapsed_s, ledger, rates
from wattserve_client._cli.predict_lines import predict_lines
from wattserve_client._cli.watch import watch, width
from wattserve_client.client import Client
from wattserve_client.errors import WattserveError
from wattserve_client.reports import EnergyReport


def predict(client: Client, options: argparse.Namespace) -> int:
    if sum(map(bool, (options.texts, options.file, options.tokens))) != 1:
        raise UsageError("predict takes TEXT, --file or --tokens, and only one of them")
    if options.file == "-":
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")  # type: ignore[union-attr]
        return _predict_lines(client, options, sys.stdin, "standard input")
    if options.file:
        try:
            file = Path(options.file).open(encoding="utf-8-sig")  # noqa: SIM115 - its own errors only
        except OSError as error:
            raise CliError(f"{options.file}: cannot be read ({error.strerror})") from None
        with file:
            return _predict_lines(client, options, file, options.file)
    try:
        answer = client.predict(
            options.texts or options.tokens,
            variant=options.variant,
            wait_for_settled_energy=options.settled,
            priority=options.priority,
        )
    except (TypeError, ValueError) as error:
        raise CliError(str(error)) from None
    shown = options.texts or [f"{len(ids)} token ids" for ids in options.tokens]
    print(_json(words.plain(answer)) if options.json else show.prediction(answer, shown, width()))
    return 0


def info(client: Client, options: argparse.Namespace) -> int:
    return _of_each(client, options, lambda member: member.server_info(), show.server_info)


def receipt(client: Client, options: argparse.Namespace) -> int:
    found = client.receipt(options.receipt_id, wait_until_settled=options.wait)
    print(_json(words.plain(found)) if options.json else show.receipt_with_lines(found, width()))
    return 0


def energy(client: Client, options: argparse.Namespace) -> int:
    if options.watch is None:
        return _of_each(
            client,
            options,
            lambda member: member.energy_report(),
            lambda report, room: ledger(report, None, room),
        )
    before: dict[str, EnergyReport] = {}

    def look() -> str:
        parts = []
        for member in client.members:
            report = member.energy_report()
            for each in (report, *report.other_devices):
                key = f"{member.target} {each.device}"
                parts.append(
                    _json(_tick(member, each, before.get(key)), None)
                    if options.json
                    else _titled(client, member, ledger(each, before.get(key, each), width()))
                )
                before[key] = each
        return "\n".join(parts) if options.json else "\n\n".join(parts) + "\n"

    watch(look, options.watch)
    return 0


def _predict_lines(client: Client, options: argparse.Namespace, file: TextIO, name: str) -> int:
    return predict_lines(
        client,
        file,
        name,
        variant=options.variant,
        settled=options.settled,
        priority=options.priority,
        as_json=options.json,
        width=width(),
    )


def _of_each(
    client: Client, options: argparse.Namespace, ask: Callable[[Client], Any], show: Callable[[Any, int], str]
) -> int:
    """What each server says; one that fails keeps no other from being shown."""
    answers, parts, failed = [], [], False
    for member in client.members:
        try:
            found = ask(member)
        except WattserveError as error:
            print(f"wattserve-client: {told(error)}", file=sys.stderr)
            failed = True
            continue
        answers.append({"target": member.target, **words.plain(found)})
        parts += [_titled(client, member, show(each, width())) for each in (found, *_others(found))]
    if options.json and answers:
        print(_json(answers if len(client.members) > 1 else answers[0]))
    elif parts:
        print("\n\n".join(parts))
    return 1 if failed else 0


def _others(found: object) -> tuple[EnergyReport, ...]:
    return found.other_devices if isinstance(found, EnergyReport) else ()


def _titled(client: Client, member: Client, text: str) -> str:
    return f"== {member.target}\n{text}" if len(client.members) > 1 else text


def _tick(member: Client, now: EnergyReport, before: EnergyReport | None) -> dict[str, Any]:
    seconds = elapsed_s(now, before)
    return {
        "target": member.target,
        "seconds_since_last": seconds or None,
        "watts_since_last": rates(now, before),
        **words.plain(now),
    }


def _json(value: Any, indent: int | None = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)
