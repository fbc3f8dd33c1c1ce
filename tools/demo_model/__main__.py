"""Retrain the demo model into a folder and hold it against the one that is shipped:

    python -m demo_model OUT

It ends with 1 where their accuracies on the held-out reviews differ by more than a point. To ship what it
made, copy its files to server/wattserve_server/engine/builtin/demo/, and the digests that it prints into
demo.py there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from demo_model.folder import digests, write
from demo_model.recipe import Recipe
from demo_model.training import accuracy, tokenise, train
from wattserve_server.engine.builtin.demo import SHIPPED

_MOST_POINTS = 1.0  # by which two trainings of one recipe may differ on machines that add in another order


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    logging.disable_progress_bar()
    out, recipe = Path(sys.argv[1]), Recipe()
    trained = train(recipe, _Progress())
    write(trained, recipe, out)
    print(f"{out}: {trained.accuracy:.2%} of {len(trained.heldout)} held-out reviews")
    print(digests(out))
    if not SHIPPED.is_dir():
        print("no model is shipped that it could be held against")
        return 0
    shipped = accuracy(
        AutoModelForSequenceClassification.from_pretrained(SHIPPED).eval(),
        tokenise(trained.heldout, AutoTokenizer.from_pretrained(SHIPPED)),
        recipe.batch,
    )
    points = (trained.accuracy - shipped) * 100
    print(f"the shipped model: {shipped:.2%}; the new one differs by {points:+.2f} points")
    if abs(points) > _MOST_POINTS:
        print(
            f"that is more than {_MOST_POINTS:g} point: the recipe no longer makes the model that is shipped"
        )
        return 1
    return 0


class _Progress:
    """One line on standard error for each new stage and for each further tenth of the work."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    def __call__(self, stage: str, done: float) -> None:
        mark = stage, int(done * 10)
        if mark != self._last:
            self._last = mark
            print(f"demo model: {stage} ({done:.0%})", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
