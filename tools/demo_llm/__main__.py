"""Retrain the demo language model into a folder and hold it against the one that is shipped:

    python -m demo_llm OUT

It takes about 20 minutes of one core, needs Debian's `bible-kjv`, and ends with 1 where their bits per byte
of the held-out books differ by more than 2 %. To ship what it made, copy its files to
server/wattserve_server/engine/builtin/demo_llm/, and the digests that it prints into demo_llm.py there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from demo_llm.corpus import read_books, split
from demo_llm.folder import write
from demo_llm.recipe import Recipe
from demo_llm.training import train, worth
from demo_model.folder import digests
from wattserve_server.engine.builtin.demo_llm import SHIPPED

_MOST = 0.02  # by which two trainings of one recipe may differ on machines that add in another order


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    out, recipe, began = Path(sys.argv[1]), Recipe(), time.monotonic()

    def report(what: str, share: float) -> None:
        print(
            f"demo-llm: {share:.0%} in {time.monotonic() - began:.0f} s: {what}", file=sys.stderr, flush=True
        )

    corpus = split(read_books(), recipe)
    trained = train(corpus, recipe, report)
    write(trained, corpus, recipe, out)
    print(f"{out}: {trained.heldout:.4f} bits per byte of the held-out books")
    print(digests(out))
    if not SHIPPED.is_dir():
        print("no model is shipped that it could be held against")
        return 0
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    shipped = worth(model, AutoTokenizer.from_pretrained(SHIPPED), corpus.heldout, recipe)
    share = trained.heldout / shipped - 1
    print(f"the shipped model: {shipped:.4f}; the new one differs by {share:+.1%}")
    if abs(share) > _MOST:
        print(f"that is more than {_MOST:.0%}: the recipe no longer makes the model that is shipped")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
