"""A grammar of short English reviews with a known sentiment.

A review has a stance, and each of its sentences agrees with the stance or not. Sentences carry weights that
follow from what they say: negation turns and dampens, contrast prefers one side, hearsay counts for little,
irony means the opposite, asides use loaded words without an opinion. The label is the sign of the sum plus
noise, so it is a matter of reading everything, and sometimes of taste. Pure: the same `Random` gives the same
review. The words themselves are in words.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from random import Random
from typing import Any

MAX_WORDS = 94  # with [CLS], [SEP] and a few split words this stays near 100 tokens
_LENGTH_SPREAD = 0.68  # of the log-normal wish; the last sentence may overshoot it
_ASIDE_RATE = 0.28
_TYPO_RATE = 0.12
_A_BEFORE_VOWEL = re.compile(r"\b([Aa])(?= [aeiou])")
_WORD = re.compile(r"\w+|[^\w\s]")

Clause = tuple[float, str]  # sentiment weight, text without a final stop
Weighted = list[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Domain:
    """One kind of thing that people review."""

    subjects: list[str]
    singular: list[str]  # aspects
    plural: list[str]
    adjectives: Weighted
    facts: Weighted
    turncoats: Weighted  # an aspect and an adjective that is praise here and blame elsewhere
    asides: list[str]  # sentences without an opinion, some full of words that usually carry one


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What can be reviewed, what can be said of it, and how much that weighs; words.toml explains each."""

    adjectives: Weighted
    intensifiers: Weighted
    statements: list[str]
    verbs: Weighted
    verdicts: Weighted
    irony: Weighted
    negations: Weighted
    hearsay: Weighted
    contrasts: list[tuple[float, float, str]]
    friends: list[str]
    days: list[str]
    name_parts: list[tuple[str, ...]]
    domains: list[Domain]


def _read_lexicon() -> Lexicon:
    table = tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))
    domains = [Domain(**_fields(domain)) for domain in table.pop("domains")]
    return Lexicon(**_fields(table), domains=domains)


def _fields(table: dict[str, list[Any]]) -> dict[str, Any]:
    """Rows of a weight and a text as tuples; adjectives, of which a row holds several, with a weight each."""
    rows = {
        name: [tuple(row) if isinstance(row, list) else row for row in value] for name, value in table.items()
    }
    adjectives = [(weight, word) for weight, line in table["adjectives"] for word in line.split()]
    return rows | {"adjectives": adjectives}


LEXICON = _read_lexicon()


@dataclass(frozen=True, slots=True)
class Noise:
    """How far the label strays from what the text says."""

    taste: float  # standard deviation of what the reader adds to the text's sentiment
    flip_rate: float  # share of labels that are simply wrong


@dataclass(frozen=True, slots=True)
class Review:
    sentences: tuple[Clause, ...]
    label: int  # 1 positive, 0 negative; because of the noise not always the sign of `sentiment`

    @property
    def text(self) -> str:
        return " ".join(text for _, text in self.sentences)

    @property
    def sentiment(self) -> float:
        return sum(weight for weight, _ in self.sentences)


def reviews(rng: Random, noise: Noise, median_words: float, seen: set[str]) -> Iterator[Review]:
    """Endless reviews, none of them in `seen`, to which each is added (in lower case)."""
    while True:
        review = _review(rng, noise, median_words)
        key = review.text.lower()
        if key not in seen:
            seen.add(key)
            yield review


def _review(rng: Random, noise: Noise, median_words: float) -> Review:
    stance = rng.choice((-1, 1))
    agreement = 0.88 + 0.12 * rng.random()
    writer = _Writer(rng)
    wished = median_words * rng.lognormvariate(0.0, _LENGTH_SPREAD)
    sentences: list[Clause] = []
    opinions = words = 0
    while words < wished or not opinions:
        if words and rng.random() < _ASIDE_RATE:
            weight, text = 0.0, writer.aside()
        else:
            desired = stance if rng.random() < agreement else -stance
            weight, text = writer.opinion(desired, short=wished < 8)
            opinions += 1
        sentence = _finish(text, weight, rng)
        words += len(_WORD.findall(sentence))
        if words > MAX_WORDS:
            break
        sentences.append((weight, sentence))
    if rng.random() < _TYPO_RATE:
        at = rng.randrange(len(sentences))
        weight, text = sentences[at]
        sentences[at] = weight, _mistype(text, rng)
    sentiment = sum(weight for weight, _ in sentences)
    positive = sentiment + rng.gauss(0.0, noise.taste) > 0
    flipped = rng.random() < noise.flip_rate
    return Review(tuple(sentences), int(positive != flipped))


def _finish(text: str, weight: float, rng: Random) -> str:
    loud = abs(weight) > 1.3 and rng.random() < 0.4
    stop = "!" if loud else "..." if rng.random() < 0.04 else "."
    return _A_BEFORE_VOWEL.sub(r"\1n", text[0].upper() + text[1:]) + stop


def _mistype(text: str, rng: Random) -> str:
    """Two neighbouring letters of one longer word change places."""
    words = text.split(" ")
    index = rng.randrange(len(words))
    word = words[index]
    if len(word) > 5 and word.isalpha():
        at = rng.randrange(1, len(word) - 2)
        words[index] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)


class _Writer:
    """Writes the sentences of one review: one domain, one subject, one tense."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._domain: Domain = rng.choice(LEXICON.domains)
        self._subject = rng.choice(self._domain.subjects)
        self._be = rng.choice((("is", "are"), ("was", "were")))
        self._adjectives: Weighted = LEXICON.adjectives + self._domain.adjectives * 3

    def aside(self) -> str:
        return self._fill(self._rng.choice(self._domain.asides))

    def opinion(self, sign: int, short: bool) -> Clause:
        """A sentence whose weight has the sign `sign`."""
        if short:
            return self._pick(sign, (self._verdict, self._liking, self._blurt, self._plain, self._negated))
        kinds = (
            (self._plain,) * 4
            + (self._negated,) * 3
            + (self._contrast,) * 3
            + (self._pair, self._liking, self._verdict, self._fact, self._turncoat, self._irony)
            + (self._hearsay,) * 2
        )
        return self._pick(sign, kinds)

    def _pick(self, sign: int, kinds: tuple[Callable[[int], Clause], ...]) -> Clause:
        return self._rng.choice(kinds)(sign)

    def _clause(self, sign: int) -> Clause:
        """A clause that can stand inside a longer sentence."""
        kinds = (self._plain, self._plain, self._negated, self._liking, self._fact, self._turncoat)
        return self._pick(sign, kinds)

    def _claim(self, sign: int) -> Clause:
        """A clause that somebody else can say: nothing in it is about "I"."""
        return self._pick(sign, (self._plain, self._plain, self._turncoat))

    def _plain(self, sign: int) -> Clause:
        weight, phrase = self._adjective_phrase(sign)
        return weight, self._fill(self._rng.choice(LEXICON.statements), phrase=phrase)

    def _pair(self, sign: int) -> Clause:
        (first, a), (second, b) = self._adjective_phrase(sign), self._adjective_phrase(sign)
        joined = self._fill(f"the {{aspect}} {{be}} {a}") + self._fill(f" and the {{aspect}} {{be}} {b}")
        return first + second, joined

    def _negated(self, sign: int) -> Clause:
        factor, frame = self._rng.choice(LEXICON.negations)
        weight, adjective = self._adjective(sign if factor > 0 else -sign)
        return factor * weight, self._fill(frame, adj=adjective)

    def _liking(self, sign: int) -> Clause:
        if self._rng.random() < 0.35:
            weight, verb = self._signed(LEXICON.verbs, -sign)
            stem = {"loathed": "loathe", "regretted": "regret"}.get(verb, verb.removesuffix("d"))
            stem = stem.removesuffix("e") if stem in ("enjoye", "resente") else stem
            return -0.6 * weight, self._fill(f"I did not {stem} the {{aspect}}")
        weight, verb = self._signed(LEXICON.verbs, sign)
        return weight, self._fill(f"I {verb} the {{aspect}}")

    def _blurt(self, sign: int) -> Clause:
        weight, phrase = self._adjective_phrase(sign)
        return weight, self._fill(self._rng.choice((f"{phrase} {{aspect}}", f"simply {phrase}", phrase)))

    def _verdict(self, sign: int) -> Clause:
        return self._signed(LEXICON.verdicts, sign)

    def _fact(self, sign: int) -> Clause:
        weight, text = self._signed(self._domain.facts, sign)
        return weight, self._fill(text)

    def _turncoat(self, sign: int) -> Clause:
        weight, pair = self._signed(self._domain.turncoats, sign)
        aspect, _, adjective = pair.rpartition(" ")
        degree, adverb = self._rng.choice(LEXICON.intensifiers)
        return weight * degree, f"the {aspect} {self._agree(aspect)} {adverb} {adjective}"

    def _irony(self, sign: int) -> Clause:
        weight, frame = self._signed(LEXICON.irony, sign)
        return weight, self._fill(frame, good=self._adjective(1)[1], bad=self._adjective(-1)[1])

    def _hearsay(self, sign: int) -> Clause:
        factor, frame = self._rng.choice(LEXICON.hearsay)
        weight, clause = self._claim(sign if factor > 0 else -sign)
        return factor * weight, self._fill(frame, clause=clause)

    def _contrast(self, sign: int) -> Clause:
        first, second, frame = self._rng.choice(LEXICON.contrasts)
        strong = sign if second > first else -sign
        (left, a), (right, b) = self._clause(-strong), self._clause(strong)
        return first * left + second * right, self._fill(frame, a=a, b=b)

    def _adjective(self, sign: int) -> Clause:
        return self._signed(self._adjectives, sign)

    def _adjective_phrase(self, sign: int) -> Clause:
        weight, adjective = self._adjective(sign)
        if self._rng.random() < 0.5:
            return weight, adjective
        degree, adverb = self._rng.choice(LEXICON.intensifiers)
        return weight * degree, f"{adverb} {adjective}"

    def _signed(self, pairs: Weighted, sign: int) -> Clause:
        while True:
            pair = self._rng.choice(pairs)
            if pair[0] * sign > 0:
                return pair

    def _agree(self, aspect: str) -> str:
        singular, plural = self._be
        return plural if aspect.endswith("s") else singular

    def _fill(self, frame: str, **parts: str) -> str:
        if "{" not in frame:
            return frame
        aspect = self._rng.choice(self._domain.singular + self._domain.plural)
        name = "".join(self._rng.choice(part) for part in LEXICON.name_parts)
        return frame.format(
            aspect=aspect,
            be=self._agree(aspect),
            subject=self._subject,
            friend=self._rng.choice(LEXICON.friends),
            day=self._rng.choice(LEXICON.days),
            name=name.capitalize(),
            n=self._rng.randint(2, 90),
            **parts,
        )
