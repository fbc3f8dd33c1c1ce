"""Text to token ids, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Tokenizer:
    """The model's tokenizer on a thread of its own: tokenizers are not safe to share."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wattserve-tokenizer")

    async def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Token ids of each text, special tokens included, not truncated."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, list(texts))

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _encode(self, texts: list[str]) -> list[NDArray[np.int64]]:
        encoded = self._tokenizer(texts, truncation=False, padding=False, verbose=False)
        return [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
