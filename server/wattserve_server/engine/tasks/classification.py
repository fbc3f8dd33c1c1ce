"""Sequence classification: one logit per label, for each sequence of token ids."""

from __future__ import annotations

from wattserve_server.engine.tasks.labels import LabelAnswers
from wattserve_server.engine.tasks.tokens import TokenItems


class SequenceClassification(TokenItems, LabelAnswers):
    name = "sequence-classification"
    auto_class = "AutoModelForSequenceClassification"
