"""What the demo corpus says, and how its labels follow from it."""

from __future__ import annotations

import hashlib
import re
from itertools import islice
from random import Random

import pytest

from demo_model.grammar import LEXICON, Noise, Review, reviews

HONEST = Noise(taste=0.0, flip_rate=0.0)


def write(count: int, seed: int = 1, noise: Noise = HONEST, median_words: float = 21.0) -> list[Review]:
    return list(islice(reviews(Random(seed), noise, median_words, set()), count))


@pytest.fixture(scope="module")
def corpus() -> list[Review]:
    return write(3000)


def test_the_same_seed_writes_the_same_reviews() -> None:
    assert write(50, seed=3) == write(50, seed=3)
    assert write(50, seed=3) != write(50, seed=4)


def test_no_text_is_written_twice(corpus: list[Review]) -> None:
    assert len({review.text.lower() for review in corpus}) == 3000


def test_texts_already_seen_are_not_written_again() -> None:
    seen = {review.text.lower() for review in write(200, seed=5, median_words=3.0)}
    again = list(islice(reviews(Random(5), HONEST, 3.0, set(seen)), 200))
    assert not seen & {review.text.lower() for review in again}


def test_without_noise_the_label_is_the_sign_of_the_sentiment(corpus: list[Review]) -> None:
    assert all(review.label == int(review.sentiment > 0) for review in corpus)


def test_a_flip_rate_of_one_inverts_every_label() -> None:
    flipped = write(300, noise=Noise(taste=0.0, flip_rate=1.0))
    assert all(review.label == int(review.sentiment <= 0) for review in flipped)


def test_noise_changes_labels_but_not_texts() -> None:
    honest, noisy = write(1000), write(1000, noise=Noise(taste=0.35, flip_rate=0.02))
    assert [review.text for review in honest] == [review.text for review in noisy]
    changed = sum(a.label != b.label for a, b in zip(honest, noisy, strict=True))
    assert 20 <= changed <= 80


def test_both_labels_are_about_as_frequent(corpus: list[Review]) -> None:
    assert 0.45 < sum(review.label for review in corpus) / 3000 < 0.55


def test_lengths_are_broad_and_skewed_to_the_right(corpus: list[Review]) -> None:
    lengths = sorted(len(re.findall(r"\w+|[^\w\s]", review.text)) for review in corpus)
    assert lengths[0] <= 6
    assert 80 <= lengths[-1] <= 94
    mean, median = sum(lengths) / 3000, lengths[1500]
    assert 25 < mean < 35
    assert median < mean


def test_every_placeholder_is_filled_and_every_sentence_is_finished(corpus: list[Review]) -> None:
    for review in corpus:
        assert not set("{}|") & set(review.text)
        assert review.text[0].isupper() or review.text[0].isdigit()
        assert review.text[-1] in ".!"


def test_the_article_fits_the_next_word(corpus: list[Review]) -> None:
    assert not any(re.search(r"\b[Aa] [aeiou]", review.text) for review in corpus)
    assert any(" an awful " in review.text for review in corpus)


def test_negated_praise_is_blame_and_negated_blame_is_praise(corpus: list[Review]) -> None:
    weights = {word: weight for weight, word in LEXICON.adjectives}
    seen = set()
    for weight, sentence in (pair for review in corpus for pair in review.sentences):
        found = re.fullmatch(r"The [\w ]+ (?:is|are|was|were) (?:not|hardly|far from) (\w+)\.", sentence)
        if found and found[1] in weights:
            assert weight * weights[found[1]] < 0, sentence
            seen.add(weights[found[1]] > 0)
    assert seen == {True, False}


def test_an_aside_full_of_loaded_words_carries_no_sentiment(corpus: list[Review]) -> None:
    sentences = [pair for review in corpus for pair in review.sentences]
    weights = {weight for weight, text in sentences if text.startswith("A poor boy finds a perfect diamond")}
    assert weights == {0.0}


def test_every_table_offers_both_signs_and_no_zero() -> None:
    tables = [LEXICON.adjectives, LEXICON.verbs, LEXICON.verdicts, LEXICON.irony, LEXICON.negations]
    for domain in LEXICON.domains:
        tables += [domain.adjectives, domain.facts, domain.turncoats]
    for table in tables:
        assert {weight > 0 for weight, _ in table} == {True, False}
        assert all(weight != 0 for weight, _ in table)


def test_the_words_are_still_those_that_the_published_model_was_trained_on() -> None:
    content = "".join(f"{review.label}{review.sentences}" for review in write(3000, noise=Noise(0.35, 0.02)))
    assert hashlib.sha256(content.encode()).hexdigest()[:12] == "c1c568b380b6"
