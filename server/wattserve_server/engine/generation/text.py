"""From tokens to text as they come: whole characters only, and up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BROKEN = "\ufffd"  # what a tokenizer writes for the bytes of a character that is not complete
CONTEXT = 6  # tokens before the new ones that they are decoded with: some put spaces between


class TextStream:
    """One generation's text. tokenizer: transformers'; None: there is no text."""

    def __init__(self, tokenizer: Any | None, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._ids: list[int] = []
        self._from = 0  # tokens before it are done with
        self._done = 0  # tokens before it are in the text
        self._held = ""  # text that may be the begin of a stop string
        self.stop = ""  # the one that was met

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these add: what is sure to be part of the answer."""
        if self._tokenizer is None:
            return ""
        self._ids.extend(token_ids)
        before = self._decode(self._ids[self._from : self._done])
        whole = self._decode(self._ids[self._from :])
        if whole.endswith(BROKEN):  # a character of which more is to come
            return ""
        self._done = len(self._ids)
        self._from = max(self._from, self._done - CONTEXT)
        return self._let_out(whole[len(before) :])

    def end(self) -> str:
        """What was held back, once nothing more comes."""
        if self._tokenizer is None or self.stop:
            return ""
        before = self._decode(self._ids[self._from : self._done])
        whole = self._decode(self._ids[self._from :])
        rest, self._held = self._held + whole[len(before) :], ""
        return rest

    def _let_out(self, more: str) -> str:
        text = self._held + more
        met = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if met:
            at, self.stop = min(met)
            self._held = ""
            return text[:at]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _decode(self, ids: Sequence[int]) -> str:
        assert self._tokenizer is not None
        if not ids:
            return ""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the text's end are the begin of the stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
