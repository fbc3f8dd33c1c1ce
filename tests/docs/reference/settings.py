"""docs/reference/configuration.md, from the settings' dataclass."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

from tests.docs.reference import NOTE, table
from wattserve_server.config import ENVIRONMENT_PREFIX, OTHER_VARIABLES, ServerConfig, flag

_KINDS = {str: "text", bool: "true or false", int: "whole number", float: "number"}
_OTHERS = {
    "WATTSERVE_API_KEY": "The API key that the client library shows, and so `wattserve-client` and "
    "`loadgen`, where none is given ([API keys](../how-to/keys.md)).",
    "WATTSERVE_CACHE": "A folder for a copy of the demo model, which is then the one that serves (default: "
    "no copy; the package's own files serve).",
    "WATTSERVE_CARBON": "`--carbon` of `wattserve usage`.",
    "WATTSERVE_EMBODIED": "`--embodied` of `wattserve usage`.",
    "WATTSERVE_PRICE": "`--price` of `wattserve usage`.",
    "WATTSERVE_PUE": "`--pue` of `wattserve usage`.",
    "WATTSERVE_TARGET": "The server that `wattserve-client` asks, where `--target` is not given; "
    "several with commas (default: `127.0.0.1:50051`).",
}
EXAMPLE = """\
model = "./my-classifier"
variants = "fp32,bf16,int8"
max-wait-ms = 2.0
lazy-variants = false
"""

_HEAD = f"""\
# Configuration

{NOTE}

Every setting of `wattserve serve`. Each can be given in three ways, the first of which wins:

1. as a flag: `--max-wait-ms 2`
2. as an environment variable: `WATTSERVE_MAX_WAIT_MS=2`
3. in a TOML file that `--config FILE` names, by the setting's name, with `_` or `-`:

```toml
{EXAMPLE}```

A value that cannot be is refused at start-up in one line that names where it was given, with exit code 2.
So is an unknown name in the file. A variable `WATTSERVE_...` that is no setting is only reported: Kubernetes
sets such by itself. One that is empty takes nothing of the file away: where that sets it too, it is refused.
Switches take `true`, `yes`, `1`, `false`, `no`, `0`; as a flag they take no value.

`wattserve`'s other commands take those of the settings that concern them: see [Command line](cli.md).

## Settings
"""


def page() -> str:
    rows = []
    for item in fields(ServerConfig):
        kind = type(item.default)
        shown = flag(item.name) + ("" if kind is bool else f" {item.metadata['metavar']}")
        default = "-" if item.default == "" else f"`{_toml(item.default)}`"
        variable = f"`{ENVIRONMENT_PREFIX}{item.name.upper()}`"
        rows.append([f"`{item.name}`", f"`{shown}`", variable, _KINDS[kind], default, _meaning(item)])
    heads = ["setting (TOML key)", "flag", "variable", "value", "default", "meaning"]
    others = [[f"`{name}`", _OTHERS[name]] for name in sorted(OTHER_VARIABLES)]
    lines = [
        _HEAD,
        *table(heads, rows),
        "",
        "A default of `-` is what the meaning says in brackets, or nothing.",
    ]
    return "\n".join([*lines, "", "## Other variables", "", *table(["variable", "meaning"], others)]) + "\n"


def _meaning(item: Field[Any]) -> str:
    text: str = item.metadata["help"]
    return text.replace("*", "\\*")


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
