"""`python -m tests.bench.memory`: what memory a server takes, part by part."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.memory import __doc__ as about
from tests.bench.memory.parts import Parts
from tests.bench.memory.watched import watched_server
from tests.bench.speed import machine

RESTING_S = 5.0

HEAD = (
    "| model, variants | when | answered | resident | files | weights | receipts | other allocated | rest |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Look:
    model: str
    variants: Sequence[str]
    when: str
    answered: int  # requests, so far
    parts: Parts


def row(look: Look) -> str:
    sizes = " | ".join(f"{size / 1e6:.0f}" for size in asdict(look.parts).values())
    return f"| {look.model} {', '.join(look.variants)} | {look.when} | {look.answered:,} | {sizes} |"


def looks(model: str, variants: Sequence[str], minutes: Sequence[float], concurrency: int) -> list[Look]:
    """minutes: after which of load it is looked at, the first ones first."""
    found: list[Look] = []

    def look(when: str, answered: int, parts: Parts) -> None:
        found.append(Look(model, variants, when, answered, parts))
        print(row(found[-1]), flush=True)

    with watched_server(model, variants) as server:
        time.sleep(RESTING_S)  # what loading needed is given back
        look("ready", 0, server.look())
        answered, passed = 0, 0.0
        for until in minutes:
            answered += len(server.load(60 * (until - passed), concurrency).latencies)
            look(f"{until:g} min of load", answered, server.look())
            passed = until
        time.sleep(RESTING_S)
        look(f"{RESTING_S:g} s after it", answered, server.look())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=about)
    parser.add_argument("--models", default="demo,random:distilbert-base")
    parser.add_argument("--variants", default="fp32 bf16 int8 fp32,bf16,int8", help="servers, by spaces")
    parser.add_argument("--minutes", default="1,5", help="of load, after which it is looked at")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every figure there, as JSON")
    options = parser.parse_args()
    minutes = [float(each) for each in options.minutes.split(",")]
    described = machine.describe()
    print(f"MB (a million bytes)\n\n{HEAD}", flush=True)
    found = [
        look
        for model in options.models.split(",")
        for variants in options.variants.split()
        for look in looks(model, variants.split(","), minutes, options.concurrency)
    ]
    print("\n" + "\n".join(f"- {name}: {value}" for name, value in described.items()))
    if options.out:
        record = {"machine": described, "looks": [asdict(look) for look in found]}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
