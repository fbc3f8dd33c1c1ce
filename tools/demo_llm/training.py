"""Training the demo language model, and what it is worth on books that it never read. Knows no files.

The model reads passages: some verses of one chapter between <s> and </s>. Where a passage ends is drawn anew
in each epoch, so it learns to end anywhere a verse does, and to go on as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo_llm.corpus import Chapter, Corpus, train_tokenizer
from demo_llm.measure import bits_per_byte
from demo_llm.recipe import Lesson, Recipe
from demo_model.training import Report, one_thread_per_operator
from wattserve_server.engine.builtin.random_weights import seeded

Rows = list[list[int]]


@dataclass(frozen=True, slots=True)
class Trained:
    model: LlamaForCausalLM  # bf16
    tokenizer: PreTrainedTokenizerFast
    tokens: int  # that it was trained on, in all epochs together
    epoch_tokens: int  # of one pass over the training text
    validation: float  # bits per byte
    heldout: float  # bits per byte


def train(corpus: Corpus, recipe: Recipe, report: Report) -> Trained:
    """Same recipe, machine and library versions: same weights, bit for bit."""
    tokenizer = train_tokenizer(corpus.training, recipe)
    rng = random.Random(recipe.seed)
    steps = [
        rows for lesson in recipe.course for rows in _steps(corpus.training, tokenizer, lesson, recipe, rng)
    ]
    with one_thread_per_operator(), seeded(recipe.seed):
        model, validation, done = _fit(_untrained(recipe), steps, tokenizer, corpus, recipe, report)
        model.to(torch.bfloat16).float()  # as it is stored, so it is measured
        heldout = worth(model, tokenizer, corpus.heldout, recipe)
    return Trained(
        model=model.to(torch.bfloat16),
        tokenizer=tokenizer,
        tokens=sum(len(row) for rows in steps[:done] for row in rows),
        epoch_tokens=sum(len(tokenizer("\n".join(chapter))["input_ids"]) for chapter in corpus.training),
        validation=validation,
        heldout=heldout,
    )


def worth(model: Any, tokenizer: Any, chapters: Sequence[Chapter], recipe: Recipe) -> float:
    """Bits per byte of those chapters."""
    texts = ["\n".join(chapter) for chapter in chapters]
    return bits_per_byte(model.eval(), tokenizer, texts, recipe.context_tokens)


def passages(chapters: Sequence[Chapter], end: float, rng: random.Random) -> Iterator[str]:
    """Each chapter in some; in the order of the text."""
    for chapter in chapters:
        verses: list[str] = []
        for verse in chapter:
            verses.append(verse)
            if rng.random() < end:
                yield "\n".join(verses)
                verses = []
        if verses:
            yield "\n".join(verses)


def rows_of(stream: Sequence[int], begin: int, length: int) -> Rows:
    """Rows of that length, each from the begin of a passage, none overlapping: of the passage that a row cuts
    off, the rest is left out."""
    rows: Rows = []
    free = 0
    for at, token in enumerate(stream[: len(stream) - length + 1]):
        if token == begin and at >= free:
            rows.append(list(stream[at : at + length]))
            free = at + length
    return rows


def _steps(
    chapters: Sequence[Chapter],
    tokenizer: PreTrainedTokenizerFast,
    lesson: Lesson,
    recipe: Recipe,
    rng: random.Random,
) -> Iterator[Rows]:
    for _ in range(lesson.epochs):
        shuffled = rng.sample(chapters, len(chapters))
        texts = list(passages(shuffled, recipe.passage_end, rng))
        stream = [token for ids in tokenizer(texts)["input_ids"] for token in (*ids, tokenizer.eos_token_id)]
        rows = rows_of(stream, tokenizer.bos_token_id, lesson.row_tokens)
        rng.shuffle(rows)
        for at in range(0, len(rows) - lesson.rows + 1, lesson.rows):
            yield rows[at : at + lesson.rows]


def _untrained(recipe: Recipe) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_value_heads,
        intermediate_size=recipe.intermediate,
        max_position_embeddings=recipe.context_tokens,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def _fit(
    model: LlamaForCausalLM,
    steps: Sequence[Rows],
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    recipe: Recipe,
    report: Report,
) -> tuple[LlamaForCausalLM, float, int]:
    """The model of the best check, its bits per byte of the validation text, and its steps."""
    optimizer = _optimizer(model, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_up_then_cosine(len(steps), recipe))
    every = max(1, len(steps) // recipe.checks)
    best, kept, kept_at, since = math.inf, model.state_dict(), 0, 0
    for done, rows in enumerate(steps, start=1):
        model.train()
        ids = torch.tensor(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if done % every and done < len(steps):
            continue
        found = worth(model, tokenizer, corpus.validation, recipe)
        report(f"{found:.4f} bits per byte of the validation text", done / len(steps))
        since += 1
        if found < best:
            best, kept_at, since = found, done, 0
            kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if since == recipe.patience:
            break
    model.load_state_dict(kept)
    return model, best, kept_at


def _optimizer(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
    )


def _warm_up_then_cosine(steps: int, recipe: Recipe) -> Callable[[int], float]:
    warm = max(1, int(steps * recipe.warm_up))

    def rate(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        share = (step - warm) / max(1, steps - warm)
        return recipe.last_rate + (1 - recipe.last_rate) * (1 + math.cos(math.pi * share)) / 2

    return rate
