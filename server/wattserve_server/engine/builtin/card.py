"""The demo model's card: what it is, how it was made, what was measured, and what it is not for."""

from __future__ import annotations

from statistics import fmean, median, quantiles

from wattserve_server.engine.builtin.recipe import Recipe, versions
from wattserve_server.engine.builtin.training import Trained


def model_card(trained: Trained, recipe: Recipe) -> str:
    """Markdown. Holds nothing that differs between two runs of the same recipe, such as dates."""
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    training = sum(lesson.reviews for lesson in recipe.course)
    lengths = trained.lengths
    p95 = quantiles(lengths, n=20)[-1]
    positive = sum(review.label for review in trained.heldout) / len(trained.heldout)
    software = "\n".join(f"- {name} {version}" for name, version in versions().items())
    return f"""\
# Wattserve's demo model

**For demonstration, not for use.** It lets Wattserve be tried without a download. Its English, its opinions
and its test set all come from one small grammar; on real reviews its answers mean little.

## What it is
A sentiment classifier (`negative`, `positive`) of the DistilBERT architecture: {recipe.layers} layers,
{recipe.heads} heads, width {recipe.dim}, feed-forward {recipe.hidden_dim}, {parameters:,} parameters, up to
{recipe.max_tokens} tokens; lower-casing WordPiece tokenizer with {len(trained.tokenizer):,} pieces.

## How it was made
Trained by Wattserve on this machine, from random weights, on {training:,} generated reviews of films,
restaurants, gadgets, hotels and books, each seen once: short ones first, at the end
{recipe.course[-1].reviews:,} as long as the held-out ones. Besides the label, training used the sentiment
that the grammar gave each sentence. Seed {recipe.seed}.

A review's sentences negate, intensify, contrast, quote others, mean the opposite, and use loaded words
without an opinion. Its label is the sign of their summed sentiment (a plain "good" counts 1) after adding
Gaussian noise of standard deviation {recipe.noise.taste} for taste; then {recipe.noise.flip_rate:.0%} of all
labels are flipped.

## What was measured
On `heldout.jsonl`: {len(trained.heldout):,} reviews, {positive:.1%} of them positive, no text of which occurs
in training, labels as noisy as there:

- accuracy **{trained.accuracy:.2%}** (fp32, on the CPU)
- the sign of the text's true sentiment, which errs only by the label noise: {trained.ceiling:.2%}
- tokens per review, [CLS] and [SEP] included: min {min(lengths)}, median {median(lengths):.0f}, \
mean {fmean(lengths):.1f}, 95th percentile {p95:.0f}, max {max(lengths)}

The same recipe on the same machine with the same versions gives the same weights, bit for bit; elsewhere the
accuracy may differ by a percent or two.

## Made with
{software}
"""
