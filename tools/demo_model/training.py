"""Making the demo classifier: corpus, tokenizer, training, and the held-out measure. Knows no files.

The label of a long review says little about any one word. So training also
asks, at the stop of each sentence, for the sentiment that the grammar gave this sentence. The head
that answers is thrown away; what remains is a plain sequence classifier.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from torch.nn import functional
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

from demo_model.grammar import Review, reviews
from demo_model.recipe import Recipe
from wattserve_server.engine.builtin.random_weights import seeded

LABELS = ("negative", "positive")
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_INSIDE_WORDS = string.ascii_lowercase + string.digits

# Takes what is being done, and which share of all the work is behind, 0 to 1.
Report = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Corpus:
    """No text is in it twice, so none is in both parts."""

    heldout: list[Review]
    lessons: list[list[Review]]


@dataclass(frozen=True, slots=True)
class Trained:
    model: DistilBertForSequenceClassification
    tokenizer: PreTrainedTokenizerFast
    heldout: list[Review]
    accuracy: float  # of the model on the held-out reviews
    ceiling: float  # of the text's own sentiment there, which errs only by the label noise
    lengths: list[int]  # tokens of each held-out review, specials included


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A tokenised review."""

    ids: list[int]
    stops: list[tuple[int, float]]  # index and sentiment of each sentence's last token
    label: int


def train(recipe: Recipe, report: Report) -> Trained:
    """Same recipe, machine and library versions: same weights, bit for bit."""
    report("writing reviews", 0.0)
    corpus = write_corpus(recipe)
    report("training the tokenizer", 0.02)
    texts = (review.text for lesson in corpus.lessons for review in lesson)
    tokenizer = train_tokenizer(texts, recipe.vocabulary, recipe.max_tokens)
    lessons = [tokenise(lesson, tokenizer) for lesson in corpus.lessons]
    heldout = tokenise(corpus.heldout, tokenizer)
    with one_thread_per_operator(), seeded(recipe.seed):
        model = _fit(_untrained(recipe, len(tokenizer)), lessons, recipe, report)
        report("measuring", 0.98)
        right = accuracy(model.eval(), heldout, recipe.batch)
    agreeing = sum(int(review.sentiment > 0) == review.label for review in corpus.heldout)
    return Trained(
        model=model,
        tokenizer=tokenizer,
        heldout=corpus.heldout,
        accuracy=right,
        ceiling=agreeing / len(corpus.heldout),
        lengths=[len(row.ids) for row in heldout],
    )


def write_corpus(recipe: Recipe) -> Corpus:
    rng = random.Random(recipe.seed)
    seen: set[str] = set()

    def write(count: int, median_words: float) -> list[Review]:
        return list(islice(reviews(rng, recipe.noise, median_words, seen), count))

    heldout = write(recipe.heldout, recipe.typical_words)
    return Corpus(heldout, [write(lesson.reviews, lesson.median_words) for lesson in recipe.course])


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Lower-casing, [CLS] … [SEP] around each text, [PAD] is id 0; every ASCII text can be spelled."""
    draft = _untrained_tokenizer(WordPiece(unk_token="[UNK]"))
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
    tokenizer = _untrained_tokenizer(WordPiece(vocab=draft.get_vocab(), unk_token="[UNK]"))
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


def _untrained_tokenizer(model: WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def _untrained(recipe: Recipe, vocabulary: int) -> DistilBertForSequenceClassification:
    config = DistilBertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=recipe.max_tokens,
        dim=recipe.dim,
        n_layers=recipe.layers,
        n_heads=recipe.heads,
        hidden_dim=recipe.hidden_dim,
        # Every review is seen once, so there is nothing to overfit, and dropout only slows learning.
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    return DistilBertForSequenceClassification(config)


def _fit(
    model: DistilBertForSequenceClassification,
    lessons: Sequence[list[_Encoded]],
    recipe: Recipe,
    report: Report,
) -> DistilBertForSequenceClassification:
    sentence_head = torch.nn.Linear(recipe.dim, 1)
    parameters = [*model.parameters(), *sentence_head.parameters()]
    optimizer = _optimizer(model, sentence_head, recipe)
    batches = [batch for lesson in lessons for batch in _batches(lesson, recipe.batch)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_up_then_down(len(batches), recipe.warm_up))
    model.train()

    def gradients(rows: Sequence[_Encoded]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(_loss(model, sentence_head, rows, recipe.sentence_weight), parameters)

    with ThreadPoolExecutor(recipe.workers) as workers:
        for step, rows in enumerate(batches):
            report("learning", 0.06 + 0.92 * step / len(batches))
            parts = [rows[start :: recipe.workers] for start in range(min(recipe.workers, len(rows)))]
            for parameter, *parts_of_it in zip(parameters, *workers.map(gradients, parts), strict=True):
                parameter.grad = torch.stack(parts_of_it).mean(dim=0)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
    return model


def _loss(
    model: DistilBertForSequenceClassification,
    sentence_head: torch.nn.Linear,
    rows: Sequence[_Encoded],
    sentence_weight: float,
) -> torch.Tensor:
    """Runs in several threads at once: it only reads the model."""
    ids, mask = _padded(rows)
    hidden = model.distilbert(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = model.classifier(
        functional.relu(model.pre_classifier(hidden[:, 0]))
    )  # as the model's own forward
    label_loss = functional.cross_entropy(logits, torch.tensor([row.label for row in rows]))
    which = torch.tensor([index for index, row in enumerate(rows) for _ in row.stops])
    where = torch.tensor([stop for row in rows for stop, _ in row.stops])
    sentiments = torch.tensor([sentiment for row in rows for _, sentiment in row.stops])
    told = sentence_head(hidden[which, where]).squeeze(-1)
    loss: torch.Tensor = label_loss + sentence_weight * functional.mse_loss(told, sentiments)
    return loss


def _optimizer(
    model: DistilBertForSequenceClassification, sentence_head: torch.nn.Linear, recipe: Recipe
) -> torch.optim.AdamW:
    """A row of the embedding moves only when its word occurs, so embeddings get a higher rate."""
    embeddings = [value for name, value in model.named_parameters() if "embeddings" in name]
    others = [value for name, value in model.named_parameters() if "embeddings" not in name]
    groups = [
        {"params": embeddings, "lr": recipe.embedding_rate, "weight_decay": 0.0},
        {"params": [*others, *sentence_head.parameters()], "lr": recipe.learning_rate, "weight_decay": 0.01},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


def _warm_up_then_down(steps: int, warm_up: float) -> Callable[[int], float]:
    return lambda step: min(1.0, (step + 1) / (steps * warm_up), 1.0 - step / steps)


def tokenise(written: Sequence[Review], tokenizer: PreTrainedTokenizerFast) -> list[_Encoded]:
    """Sentence by sentence, to know where each ends; WordPiece gives the same ids as for the whole text."""
    sentences = [text for review in written for _, text in review.sentences]
    pieces = iter(tokenizer(sentences, add_special_tokens=False)["input_ids"])
    rows = []
    for review in written:
        ids = [tokenizer.cls_token_id]
        stops = []
        for sentiment, _ in review.sentences:
            ids += next(pieces)
            stops.append((len(ids) - 1, sentiment))
        rows.append(_Encoded([*ids, tokenizer.sep_token_id], stops, review.label))
    return rows


def _batches(rows: Sequence[_Encoded], size: int) -> Iterator[list[_Encoded]]:
    """Rows of similar length together, in an order drawn from torch's generator."""
    order = torch.randperm(len(rows)).tolist()
    pool = size * 32  # rows sorted together: wide enough to waste little padding, narrow enough to mix
    for start in range(0, len(order), pool):
        chosen = sorted((rows[index] for index in order[start : start + pool]), key=lambda row: len(row.ids))
        batches = [chosen[at : at + size] for at in range(0, len(chosen), size)]
        yield from (batches[index] for index in torch.randperm(len(batches)).tolist())


def _padded(rows: Sequence[_Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, both int64 [rows, longest]; [PAD] is 0."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])
    lengths = torch.tensor([len(row.ids) for row in rows])
    return ids, (torch.arange(longest) < lengths[:, None]).long()


@torch.no_grad()
def accuracy(model: DistilBertForSequenceClassification, rows: Sequence[_Encoded], batch: int) -> float:
    ordered = sorted(rows, key=lambda row: len(row.ids))
    right = 0
    for start in range(0, len(ordered), batch):
        chosen = ordered[start : start + batch]
        ids, mask = _padded(chosen)
        answers = model(input_ids=ids, attention_mask=mask).logits.argmax(dim=-1).tolist()
        right += sum(answer == row.label for answer, row in zip(answers, chosen, strict=True))
    return right / len(rows)


@contextmanager
def one_thread_per_operator() -> Iterator[None]:
    """Sums then have one order on any number of cores. And two threads inside each small operator meet at
    barriers where they spin: with another process on the cores, training took 5 minutes instead of 1."""
    callers = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(callers)
