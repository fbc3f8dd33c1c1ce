"""The model's files for the peers, what everybody is asked, and what plain torch answers, in fp32.

`python -m tests.bench.peers.prepare FOLDER MODEL COUNT SEED`: a process of its own, so that the client has no
torch.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.peers.padded import Model
from tests.bench.peers.settings import LONGEST, PAD
from tests.bench.speed.sequences import sequences_like_sst2
from wattserve_server.engine.builtin.demo import demo_folder
from wattserve_server.engine.builtin.random_weights import build_random_model

ASKED, ANSWERED, WEIGHTS = "sequences.json", "logits.json", "model"
FIRST_ID = 5
"""Those below stand for something."""


def main(folder: Path, model: str, count: int, seed: int) -> None:
    """Writes ASKED, lists of ids; ANSWERED, logits for each; WEIGHTS, a folder as transformers reads it."""
    if model == "demo":
        shutil.copytree(demo_folder(), folder / WEIGHTS)
    else:
        module: Any = build_random_model(model.removeprefix("random:"))
        module.save_pretrained(folder / WEIGHTS)
    vocabulary = json.loads((folder / WEIGHTS / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    sequences = [
        [FIRST_ID + one % (vocabulary - FIRST_ID) for one in ids] for ids in sequences_like_sst2(count, seed)
    ]
    plain = Model(str(folder / WEIGHTS), "fp32")
    rows = np.full((count, LONGEST), PAD, dtype=np.int64)
    for row, ids in zip(rows, sequences, strict=True):
        row[: len(ids)] = ids
    answers = [plain.logits(rows[number : number + 1])[0].tolist() for number in range(count)]
    (folder / ASKED).write_text(json.dumps(sequences), encoding="utf-8")
    (folder / ANSWERED).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
