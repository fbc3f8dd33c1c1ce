"""The tests; ROOT is the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
