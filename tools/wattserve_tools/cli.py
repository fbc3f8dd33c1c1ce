"""The command `wattserve`: serve, usage, audit, keys, variants, inspect, bench, meter, demo-model.

A user's mistake is one line and exit code 2.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version

from wattserve_common.arguments import Parser, check_output, nobody_reads
from wattserve_common.errors import UserError, incomplete, shortage
from wattserve_server.audit_commands import add_audit_commands
from wattserve_server.config import ServerConfig, add_flags, read_config, unknown_variables
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.key_commands import add_key_commands
from wattserve_server.meter_commands import add_meter_commands
from wattserve_server.rare_lines import RARE_LINES
from wattserve_server.variant_commands import add_variant_commands
from wattserve_tools.inspect.cli import add_inspection_commands
from wattserve_tools.usage.cli import add_usage_command


def main(argv: Sequence[str] | None = None) -> int:
    handler = logging.StreamHandler()
    handler.addFilter(RARE_LINES)
    words = "wattserve: %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=words, handlers=[handler])
    logging.getLogger("wattserve_server").setLevel(logging.INFO)
    # Where it is installed, transformers imports it for any model, and it tells of each GPU kernel it lacks.
    for name in ("torchao", "torch.utils._pytree"):  # which warn whoever only has torchao installed
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        check_output()
        arguments = _parser().parse_args(argv)
        config = read_config(vars(arguments))
        code = int(arguments.run(config, arguments))
        sys.stdout.flush()
        return code
    except (ConfigError, MeterError, UserError) as error:
        print(f"wattserve: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wattserve"):
            raise
        print(f"wattserve: error: {incomplete(error, 'server')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return nobody_reads()
    except Exception as error:
        if not (told := shortage(error)):
            raise
        print(f"wattserve: error: {told}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(
        prog="wattserve",
        description="An inference server that tells every request what it cost in joules.",
    )
    parser.add_argument("--version", action="version", version=f"wattserve {version('wattserve')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serving = commands.add_parser(
        "serve",
        help="serve a model",
        description="Serve a model in several precisions. Every setting can also be given as an environment "
        "variable WATTSERVE_NAME, or in a TOML file (--config).",
    )
    add_flags(serving)
    serving.set_defaults(run=_serve, audit=None)
    add_audit_commands(commands, _serve)
    add_key_commands(commands)
    add_variant_commands(commands)
    add_inspection_commands(commands)
    add_usage_command(commands)
    add_meter_commands(commands)
    demo = commands.add_parser(
        "demo-model",
        help="print the folder of a built-in demo model",
        description="Print the folder of a built-in demo model: weights, tokenizer, and what it was not "
        "trained on: heldout.jsonl, texts with labels, or heldout.txt of demo-llm. It comes with this "
        "package; where WATTSERVE_CACHE is set, the folder is a copy in there.",
    )
    demo.add_argument("name", nargs="?", default="demo", choices=["demo", "demo-llm"], help="default: demo")
    demo.set_defaults(run=_demo_model)
    return parser


def _serve(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.app import serve

    for name in unknown_variables():
        print(f"wattserve: {name} is no setting, and is ignored; see wattserve serve --help", file=sys.stderr)
    return asyncio.run(serve(config, arguments.audit))


def _demo_model(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.engine.checkpoint import BUILT_IN

    print(BUILT_IN[arguments.name]())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
