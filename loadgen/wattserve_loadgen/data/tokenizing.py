"""The tokenizer and the configuration of a model: from a folder, the local cache or the hub."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattserve_common.errors import DatasetError
from wattserve_common.hub import hub_is_reachable
from wattserve_common.positions import DEFAULT_LONGEST, longest_sequence, tokenizer_limit


def load_tokenizer(name: str) -> Any:
    """From a folder or the local cache; from the hub only when it is not there and the hub can be reached."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    with suppress(Exception):  # whatever it is, the attempt below says it better
        return transformers.AutoTokenizer.from_pretrained(name, local_files_only=True)
    if Path(name).is_dir():
        raise DatasetError(f"--tokenizer {name}: the folder holds no tokenizer that transformers can load")
    if name.startswith((".", "/", "~")):
        raise DatasetError(f"--tokenizer {name}: no such folder")
    if not hub_is_reachable():
        raise DatasetError(
            f"--tokenizer {name}: not in the local cache, and the hub cannot be reached from here"
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except Exception as error:  # an unknown name, a private model, a torn download: all the user's to repair
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise DatasetError(f"--tokenizer {name}: no tokenizer could be loaded ({reason})") from None


def load_config(model: str) -> Any | None:
    """Of a model's folder or name; None for a folder with a tokenizer alone."""
    import transformers

    try:
        return transformers.AutoConfig.from_pretrained(model)
    except Exception:  # whatever is wrong with it: the tokenizer is enough to make a dataset
        return None


def row_limit(encoder: Any, config: Any | None, asked: int | None) -> int:
    """To which rows are cut. The server refuses longer ones by the same rule."""
    if config is None:
        most = tokenizer_limit(encoder)
    else:
        own = getattr(config, "pad_token_id", None)
        pad_id = encoder.pad_token_id if own is None else own  # the server borrows it likewise
        most = longest_sequence(config, encoder, pad_id or 0)
    if asked is None:
        return most or DEFAULT_LONGEST
    if asked < 1:
        raise DatasetError(f"--max-length {asked}: it must be at least 1")
    if most is not None and asked > most:
        raise DatasetError(f"--max-length {asked}: the model takes at most {most} tokens")
    return asked


def check_seed(seed: int) -> None:
    if seed < 0:
        raise DatasetError(f"--seed {seed}: it must be 0 or more")
