"""The demo model's WordPiece tokenizer, trained on the demo corpus: same texts, same vocabulary."""

from __future__ import annotations

import string
from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from transformers import PreTrainedTokenizerFast

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_INSIDE_WORDS = string.ascii_lowercase + string.digits


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Lower-casing, [CLS] … [SEP] around each text, [PAD] is id 0; every ASCII text can be spelled."""
    draft = _empty(WordPiece(unk_token="[UNK]"))
    # The trainer numbers "##x" pieces in the order of a hash map that differs from run to run, and breaks
    # ties by number. Given as special tokens they are numbered first, in this order; the final tokenizer,
    # below, is built from the vocabulary alone and does not treat them as special.
    pieces = [f"##{letter}" for letter in _INSIDE_WORDS]
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=_SPECIAL + pieces,
        initial_alphabet=list(_INSIDE_WORDS + string.punctuation),
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    tokenizer = _empty(WordPiece(vocab=draft.get_vocab(), unk_token="[UNK]"))
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{token[1:-1].lower()}_token": token for token in _SPECIAL},
    )


def _empty(model: WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer
