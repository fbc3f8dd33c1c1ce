"""The command `wattserve keys`: make, list and revoke the API keys of a file that a server reads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from wattserve_common.arguments import count, listed, positive
from wattserve_server.config import ServerConfig, flag_reader
from wattserve_server.console import say, wide_console
from wattserve_server.errors import ConfigError
from wattserve_server.service.keys import PREDICT, READ_OWN, RIGHTS, ApiKey, changing, new_key, read_keys


def add_key_commands(commands: Any) -> None:
    """commands: what `add_subparsers` gave."""
    keys = commands.add_parser(
        "keys",
        help="make, list and revoke API keys",
        description="API keys of a file that `wattserve serve --keys-file FILE` reads, and reads again "
        "within two seconds when it changes. It holds hashes: a key itself is told once, when it is made.",
    )
    actions = keys.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        parser.add_argument("--file", required=True, metavar="FILE", type=Path, help="the file of keys")
        parser.set_defaults(run=run)
        return parser

    adding = add("add", _add, "make a key, tell it on standard output, and add it to the file")
    adding.add_argument("--tenant", required=True, metavar="NAME", help="whose requests and receipts are its")
    adding.add_argument(
        "--may",
        type=flag_reader("--may", listed(str)),
        default=(PREDICT, READ_OWN),
        metavar="RIGHTS",
        help=f"of {', '.join(RIGHTS)}, separated by commas; admin loads and unloads variants "
        f"(default: {PREDICT},{READ_OWN})",
    )
    adding.add_argument(
        "--requests-per-second",
        type=flag_reader("--requests-per-second", positive),
        default=0.0,
        metavar="N",
        help="of its tenant at the most, as many of them at once (default: no limit)",
    )
    adding.add_argument(
        "--in-flight",
        type=flag_reader("--in-flight", count),
        default=0,
        metavar="N",
        help="predictions of its tenant at the same time at the most (default: no limit)",
    )
    adding.add_argument(
        "--names",
        type=flag_reader("--names", listed(str)),
        default=(),
        metavar="TENANTS",
        help="of a proxy's key: tenants that it may name in x-wattserve-tenant, where the server has "
        "--trust-tenant-header; each gets the limits of this key",
    )
    adding.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="BUDGET",
        help="of its tenant, as `hard 500 J/day` or `soft 2 kWh/month`; may be repeated; needs a server with "
        "--account-book (default: none)",
    )
    add("list", _list, "list the keys of the file, of which no key can be told")
    revoking = add("revoke", _revoke, "take a key out of the file; its open calls end")
    revoking.add_argument("id", metavar="ID", help="the part between the first two _ of the key")


def _add(config: ServerConfig, arguments: argparse.Namespace) -> int:
    text, key = new_key(
        arguments.tenant,
        arguments.may,
        arguments.requests_per_second,
        arguments.in_flight,
        arguments.names,
        arguments.budget,
    )
    with changing(arguments.file) as keys:
        keys[key.id] = key
        try:
            print(text, flush=True)
        except OSError as error:
            raise ConfigError(f"the key cannot be told ({error.strerror}), so none was added") from None
    say(f"key {key.id} of tenant {key.tenant} is in {arguments.file}; it itself is told this once")
    return 0


def _list(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from rich.table import Table

    table = Table()
    for heading in ("id", "tenant", "may", "requests/s", "in flight", "budgets", "names", "created"):
        table.add_column(heading, overflow="fold")
    for key in read_keys(arguments.file).by_id.values():
        table.add_row(*_row(key))
    wide_console().print(table)
    return 0


def _row(key: ApiKey) -> tuple[str, ...]:
    limits = (f"{limit:g}" if limit else "-" for limit in (key.requests_per_second, key.in_flight))
    named = (", ".join(key.budgets) or "-", ", ".join(key.names) or "-", key.created or "-")
    return key.id, key.tenant, ", ".join(key.may), *limits, *named


def _revoke(config: ServerConfig, arguments: argparse.Namespace) -> int:
    with changing(arguments.file) as keys:
        key = keys.pop(arguments.id, None)
        if key is None:
            known = ", ".join(keys) or "none"
            raise ConfigError(f"{arguments.file}: no key has the id {arguments.id[:12]!r}; it holds {known}")
    say(f"key {key.id} of tenant {key.tenant} is revoked")
    return 0
