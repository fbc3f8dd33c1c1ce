"""A tokenizer of bytes for language models with random weights: it spells every text, and gives it back."""

from __future__ import annotations

from itertools import count, product
from string import ascii_lowercase
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

_SPACE = "Ġ"  # how ByteLevel writes one


def byte_tokenizer(config: Any) -> PreTrainedTokenizerFast:
    """For a causal model's config: a token a byte. The ids beyond those of bytes stand for made-up words,
    which no text is encoded to, so that whatever a random model answers can be read. Nothing is put around a
    text. Raises ValueError for a vocabulary without room for the bytes."""
    special = {
        getattr(config, f"{name}_token_id"): name
        for name in ("pad", "bos", "eos")
        if getattr(config, f"{name}_token_id") is not None
    }
    plain = [i for i in range(config.vocab_size) if i not in special]
    alphabet = sorted(ByteLevel.alphabet())
    if len(plain) < len(alphabet):
        raise ValueError(f"a vocabulary of {config.vocab_size} has no room for {len(alphabet)} bytes")
    letters = (f"{_SPACE}{''.join(word)}" for n in count(2) for word in product(ascii_lowercase, repeat=n))
    words = (*alphabet, *(next(letters) for _ in plain[len(alphabet) :]))
    names = {i: f"<|{name}|>" for i, name in special.items()}
    vocabulary = {word: i for i, word in (*zip(plain, words, strict=True), *names.items())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a prompt that spells one is text
        **{f"{name}_token": names[i] for i, name in special.items()},
    )
