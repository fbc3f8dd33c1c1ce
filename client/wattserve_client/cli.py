"""The command line `wattserve-client`: ask a server from a shell, and see what an answer cost.

Exit codes:
    0    done
    1    the server refused, is out of reach or not `ready` in time; some lines failed
    2    a mistake in the arguments or the input
    130  Ctrl-C, except in `energy --watch`, which it ends
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence

from wattserve_client._cli import commands, generate, words
from wattserve_client._cli.words import ArgumentsError, CommandError
from wattserve_client._servers import DEFAULT_TARGET, Tls
from wattserve_client.client import Client
from wattserve_client.errors import WattserveError
from wattserve_client.keys import VARIABLE
from wattserve_common.arguments import Parser, check_output, float_of, int_of, nobody_reads
from wattserve_common.arguments import address as host_port
from wattserve_common.errors import UserError, shortage
from wattserve_common.machine import version_of

_FAILED, _MISTAKE, _INTERRUPTED = 1, 2, 130
_WATCH_SECONDS = 2.0
_TARGET_VARIABLE = "WATTSERVE_TARGET"
_EPILOG = """\
examples, against a server started with `wattserve serve`:

  wattserve-client predict --settled "a delightful film" "a dull one"
  wattserve-client predict --variant int8-weight-only --file reviews.txt
  wattserve-client generate "In the beginning" --max-new-tokens 40
  wattserve-client energy --watch
"""


def main(argv: Sequence[str] | None = None) -> int:
    try:
        check_output()
        options = _options(argv)
        with _client(options) as client:
            code: int = options.run(client, options)
            sys.stdout.flush()
            return code
    except (ArgumentsError, UserError) as error:
        return _complain(str(error), _MISTAKE)
    except CommandError as error:
        return _complain(str(error), _FAILED)
    except WattserveError as error:
        return _complain(words.error_line(error), _FAILED)
    except KeyboardInterrupt:
        return _complain("stopped", _INTERRUPTED)
    except BrokenPipeError:
        return nobody_reads()
    except OSError as error:  # as standard output may raise it
        if not (told := shortage(error)):
            raise
        return _complain(told, _FAILED)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    defaults = argparse.Namespace(target=[], timeout=30.0, tls=False, json=False, api_key_file=None)
    options: argparse.Namespace
    options, rest = parser.parse_known_args(argv, defaults)
    if rest:  # argparse takes texts in one place only: `predict a --settled b` leaves b
        options.texts += rest
    return options


def _complain(message: str, code: int) -> int:
    print(f"wattserve-client: {message}", file=sys.stderr)
    return code


def _client(options: argparse.Namespace) -> Client:
    names = ("ca", "cert", "key", "server_name")
    given = {name: getattr(options, f"tls_{name}") for name in names if f"tls_{name}" in options}
    try:
        tls: Tls | bool = Tls(**given) if given else options.tls
    except ValueError as error:
        raise ArgumentsError(words.in_flags(str(error))) from None
    targets = options.target or _default_target()
    if len(set(targets)) != len(targets):
        raise ArgumentsError("--target names the same address twice")
    try:
        return Client(
            targets if len(targets) > 1 else targets[0],
            timeout_s=options.timeout,
            tls=tls,
            api_key_file=options.api_key_file,
        )
    except OSError as error:
        raise ArgumentsError(f"{error.filename}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ArgumentsError(words.in_flags(str(error))) from None


def _default_target() -> list[str]:
    try:
        return _addresses(os.environ.get(_TARGET_VARIABLE) or DEFAULT_TARGET)
    except argparse.ArgumentTypeError as error:
        raise ArgumentsError(f"{_TARGET_VARIABLE}: {error}") from None


def _parser() -> Parser:
    anywhere = _anywhere()
    parser = Parser(
        prog="wattserve-client",
        description="Asks a Wattserve server for predictions, and for what they cost in joules.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[anywhere],
    )
    parser.add_argument(
        "--version", action="version", version=f"wattserve-client {version_of('wattserve') or 'unknown'}"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[Client, argparse.Namespace], int], help: str) -> Parser:
        description = f"Shows {help}."
        command = subparsers.add_parser(name, help=help, description=description, parents=[anywhere])
        command.set_defaults(run=run)
        return command

    parser.takes_rest = True  # of `predict` and `score` alone: the other commands leave none
    _add_predict(add("predict", commands.predict, "predict texts, token ids, or the lines of a file"))
    _add_generate(add("generate", generate.generate, "how a language model goes on, and what it cost"))
    _add_score(add("score", generate.score, "how likely a language model finds given texts"))
    ready = add("ready", commands.ready, "whether the server takes requests; exit code 0: it does, 1: not")
    ready.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="for it and all that it is loading, or one --variant, so long at the most (default: ask once)",
    )
    ready.add_argument("--variant", default="", metavar="NAME", help="whether this one is ready, too")
    add("info", commands.info, "what is served: variants, what each really runs, meter, limits")
    receipt = add("receipt", commands.receipt, "what an earlier request cost")
    receipt.add_argument("receipt_id", nargs="?", metavar="ID", help="as `predict` tells it, or an error")
    receipt.add_argument(
        "--request-id", metavar="ID", help="instead: all receipts of your own id of a request, newest first"
    )
    receipt.add_argument("--wait", action="store_true", help="until the energy is settled")
    energy = add("energy", commands.energy, "the ledger: where every joule of the meter stands")
    energy.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=_WATCH_SECONDS,
        metavar="SECONDS",
        help=f"again and again, with the watts since the last time (default: every {_WATCH_SECONDS:g} s)",
    )
    return parser


def _anywhere() -> Parser:
    """Options that may stand before the command, or after it, where they must not undo what stood before."""
    parser = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="as JSON; units are in the names")
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--target",
        action="extend",
        type=_addresses,
        metavar="HOST:PORT",
        help=f"the server; repeat it for several (default: ${_TARGET_VARIABLE} or {DEFAULT_TARGET})",
    )
    group.add_argument(
        "--timeout", type=_seconds, metavar="S", help="seconds that a call may take (default: 30)"
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"holds the API key, for a server that asks for one (default: ${VARIABLE}, if it is set)",
    )
    group.add_argument("--tls", action="store_true", help="encrypt; any other --tls-... implies it")
    for name, metavar, what in (
        ("ca", "FILE", "who signs the server's certificate, PEM (default: the public authorities)"),
        ("cert", "FILE", "the client's own certificate, PEM"),
        ("key", "FILE", "its key, PEM"),
        ("server-name", "NAME", "the name that the server's certificate must show"),
    ):
        group.add_argument(f"--tls-{name}", metavar=metavar, help=what)
    return parser


def _add_predict(parser: Parser) -> None:
    parser.description = (
        "Texts are sent as one request with one receipt; the lines of a file as one request each, over a "
        "stream, and shown as they are answered (with --json: one object a line)."
    )
    _add_texts(parser)
    parser.add_argument("--file", metavar="FILE", help="one text a line, in UTF-8; - for standard input")
    parser.add_argument(
        "--request-id",
        default="",
        metavar="ID",
        help="yours, by which `receipt --request-id` finds it; of a file's texts ID/0, ID/1, ...",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="cut a text that is longer than the model takes, and say how much (default: refuse it)",
    )
    parser.add_argument(
        "--max-energy-uj",
        type=int,
        metavar="UJ",
        help="microjoules that a request may cost: refused where the server predicts more (default: any)",
    )
    _add_ways(parser)


def _add_generate(parser: Parser) -> None:
    parser.description = (
        "Shows how a language model goes on, on standard output as it comes; then, on standard error, what "
        "it cost: joules of the prompt, of the answer, and a token."
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="a text; - for standard input")
    parser.add_argument("--tokens", type=_ids, metavar="ID,ID,...", help="token ids, instead of a text")
    for name, kind, metavar, what in (
        ("max-new-tokens", int, "N", "at the most (default: 128, or what the model's context leaves)"),
        ("temperature", float, "T", "of drawing; 0 (the default): the likeliest token, always"),
        ("top-k", int, "N", "draw of so many of the likeliest (default: of all)"),
        (
            "top-p",
            float,
            "P",
            "draw of the likeliest that together have this probability (default: 1)",
        ),
        ("repetition-penalty", float, "X", "for tokens that were there (default: 1, none)"),
        ("seed", int, "N", "the same draws the same again (default: the server draws one, and tells it)"),
        ("logprobs", int, "N", "with --json: of each token, and of so many of the likeliest in its place"),
        ("max-energy-uj", int, "N", "end once it has cost so many microjoules"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=what)
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on behind the model's own end")
    parser.add_argument("--request-id", default="", metavar="ID", help="yours, by which its receipt is found")
    _add_ways(parser)


def _add_score(parser: Parser) -> None:
    parser.description = (
        "Shows how likely a language model finds given texts: the log-probability of each token after those "
        "before it, summed. One request with one receipt."
    )
    _add_texts(parser)
    parser.add_argument("--request-id", default="", metavar="ID", help="yours, by which its receipt is found")
    _add_ways(parser)


def _add_texts(parser: Parser) -> None:
    parser.takes_rest = True
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="one sequence each")
    parser.add_argument(
        "--tokens",
        action="append",
        type=_ids,
        metavar="ID,ID,...",
        help="a sequence of token ids; may be repeated",
    )


def _add_ways(parser: Parser) -> None:
    """How a request is treated."""
    parser.add_argument("--variant", default="", metavar="NAME", help="the precision (default: the server's)")
    parser.add_argument("--settled", action="store_true", help="wait until the energy is settled")
    parser.add_argument(
        "--priority",
        type=int,
        choices=range(4),
        default=0,
        metavar="N",
        help="whose turn it is while requests wait: 1 goes first, 3 last; 2 and 0 (the default) as usual",
    )


def _addresses(text: str) -> list[str]:
    """Separated by commas."""
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    for address in addresses or [text]:
        if not address.startswith("unix:") or len(addresses) > 1:
            host_port(address)
    return addresses


def _ids(text: str) -> list[int]:
    try:
        return [int_of(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids, like 101,7592,102") from None


def _seconds(text: str) -> float:
    try:
        value = float_of(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
