"""The commands of `wattserve-client`: each asks the server, prints what it said, returns the exit code."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from wattserve_client._cli import show, words
from wattserve_client._cli.predict_lines import predict_lines
from wattserve_client._cli.readiness import readiness
from wattserve_client._cli.show import together
from wattserve_client._cli.words import ArgumentsError
from wattserve_client.client import Client
from wattserve_client.errors import DeadlineExceeded, Unavailable, WattserveError
from wattserve_client.reports import EnergyReport

READY_PERIOD_S = 0.5  # between two questions
LEAST_TRY_S = 1.0  # for the one question that `ready` asks in any case


def predict(client: Client, options: argparse.Namespace) -> int:
    if sum(map(bool, (options.texts, options.file, options.tokens))) != 1:
        raise ArgumentsError("predict takes TEXT, --file or --tokens, and only one of them")
    asked = asked_by(options) | {"truncate": options.truncate, "max_energy_uj": options.max_energy_uj}
    if options.file == "-":
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")  # type: ignore[union-attr]
        return predict_lines(client, asked, sys.stdin, "standard input", options.json, width())
    if options.file:
        try:
            file = Path(options.file).open(encoding="utf-8-sig")  # noqa: SIM115 - its own errors only
        except OSError as error:
            raise ArgumentsError(f"{options.file}: cannot be read ({error.strerror})") from None
        with file:
            return predict_lines(client, asked, file, options.file, options.json, width())
    with words.refusing_arguments():
        answer = client.predict(options.texts or options.tokens, **asked)
    texts = options.texts or [f"{len(ids)} token ids" for ids in options.tokens]
    print(words.as_json(words.plain(answer)) if options.json else show.prediction(answer, texts, width()))
    return 0


def asked_by(options: argparse.Namespace) -> dict[str, Any]:
    """What every request says of itself, by the names that the library has for it."""
    return {
        "variant": options.variant,
        "request_id": options.request_id,
        "priority": options.priority,
        "wait_for_settled_energy": options.settled,
    }


def info(client: Client, options: argparse.Namespace) -> int:
    return _of_each(client, options, Client.server_info, show.server_info)


def ready(client: Client, options: argparse.Namespace) -> int:
    """0 once every server takes requests, and has loaded what --wait or --variant ask for; 1 when one does
    not, after --wait seconds."""
    until_s = time.monotonic() + options.wait
    answers, code = [], 0
    for member in client.members:
        while True:
            left_s = until_s - time.monotonic()
            within_s = min(options.timeout, max(left_s, LEAST_TRY_S))
            seen = readiness(member, within_s, of_all=options.wait > 0, variant=options.variant)
            if seen.is_final or left_s <= 0:
                break
            pause(min(READY_PERIOD_S, left_s))
        answers.append({"target": member.target, "ready": seen.is_ready, "reason": seen.reason})
        if not seen.is_ready:
            code = 1
            waited = f" after {options.wait:g} s" if options.wait and not seen.is_final else ""
            print(
                f"wattserve-client: {member.target}: not ready{waited}: {words.in_flags(seen.reason)}",
                file=sys.stderr,
            )
        elif not options.json:
            print(f"{member.target} is ready{seen.reason and f'; {seen.reason}'}")
    if options.json:
        print(words.as_json(answers if len(client.members) > 1 else answers[0]))
    return code


def receipt(client: Client, options: argparse.Namespace) -> int:
    if (options.receipt_id is None) == (options.request_id is None):
        raise ArgumentsError("receipt takes ID or --request-id, and only one of them")
    if options.request_id is not None:
        with words.refusing_arguments():
            found = client.find_receipts(options.request_id, wait_until_settled=options.wait)
        print(words.as_json(words.plain(found)) if options.json else show.found_receipts(found, width()))
        return 0
    with words.refusing_arguments():
        answer = client.receipt(options.receipt_id, wait_until_settled=options.wait)
    print(words.as_json(words.plain(answer)) if options.json else show.receipt_with_lines(answer, width()))
    return 0


def energy(client: Client, options: argparse.Namespace) -> int:
    if options.watch is None:
        return _of_each(client, options, Client.energy_report, show.ledger)
    watched = [Watched(client, member, options.json) for member in client.members]

    def look() -> str:
        parts = [part for each in watched for part in each.look()]
        return "\n".join(parts) if options.json else "\n\n".join(parts) + "\n"

    watch(look, options.watch)
    return 0


class Watched:
    """A server whose ledger is looked at again and again, through its restarts. as_json: in lines."""

    def __init__(self, client: Client, member: Client, as_json: bool) -> None:
        self._client, self._member, self._as_json = client, member, as_json
        self._before: dict[str, EnergyReport] = {}  # by device
        self._restarted = ""

    def look(self) -> list[str]:
        """What each of its ledgers says. One that was there once may be gone for a while; one that never was
        there is an error."""
        try:
            answer = self._member.energy_report()
        except (Unavailable, DeadlineExceeded) as error:
            if not self._before:
                raise
            if self._as_json:
                return [
                    words.as_json({"target": self._member.target, "error": words.error_as_json(error)}, None)
                ]
            return [_titled(self._client, self._member, f"waiting for the server: {words.error_line(error)}")]
        before, self._before = self._before, {}
        return [self._ledger(report, before.get(report.device)) for report in (answer, *answer.other_devices)]

    def _ledger(self, now: EnergyReport, before: EnergyReport | None) -> str:
        self._before[now.device] = now
        if self._as_json:
            return words.as_json(_tick(self._member, now, before), None)
        if before is not None and show.began_again(now, before):
            self._restarted = f"server restarted: new ledger since {words.moment(now.since_unix_ns)}\n\n"
        text = self._restarted + show.ledger(now, width(), before or now)
        return _titled(self._client, self._member, text)


pause = time.sleep  # between two looks; for a test to replace


def watch(look: Callable[[], str], seconds: float) -> None:
    """Show what `look` returns, every `seconds`: in place on a terminal, one after another elsewhere. Ctrl-C
    ends it, and is no error."""
    screen = Live(auto_refresh=False) if sys.stdout.isatty() else None
    with suppress(KeyboardInterrupt), screen or nullcontext():
        while True:
            text = look()
            if screen is None:
                print(text, flush=True)
            else:
                screen.update(Text(text), refresh=True)
            pause(seconds)


def width() -> int:
    """Of the terminal, in characters; 0, without limit, where the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def _of_each(
    client: Client, options: argparse.Namespace, ask: Callable[[Client], Any], show: Callable[[Any, int], str]
) -> int:
    """What each server says; one that fails keeps no other from being shown."""
    answers, parts, failed = [], [], False
    for member in client.members:
        try:
            answer = ask(member)
        except WattserveError as error:
            print(f"wattserve-client: {words.error_line(error)}", file=sys.stderr)
            failed = True
            continue
        answers.append({"target": member.target, **words.plain(answer)})
        others = answer.other_devices if isinstance(answer, EnergyReport) else ()
        parts += [_titled(client, member, show(part, width())) for part in (answer, *others)]
        if others:
            parts.append(_titled(client, member, together((answer, *others))))
    if options.json and answers:
        print(words.as_json(answers if len(client.members) > 1 else answers[0]))
    elif parts:
        print("\n\n".join(parts))
    return 1 if failed else 0


def _titled(client: Client, member: Client, text: str) -> str:
    return f"== {member.target}\n{text}" if len(client.members) > 1 else text


def _tick(member: Client, now: EnergyReport, before: EnergyReport | None) -> dict[str, Any]:
    seconds = show.elapsed_s(now, before)
    return {
        "target": member.target,
        "seconds_since_last": seconds or None,
        "watts_since_last": show.rates(now, before),
        **words.plain(now),
    }
