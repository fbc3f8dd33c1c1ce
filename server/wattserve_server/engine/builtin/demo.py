"""The `demo` model's folder: found in the cache, or made there, once, whoever asks and however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median, quantiles

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.utils import logging as transformers_logging

from wattserve_server.engine.builtin.recipe import Recipe, versions
from wattserve_server.engine.builtin.training import Report, Trained, train
from wattserve_server.errors import ConfigError

HELDOUT = "heldout.jsonl"
_CARD = "MODEL.md"
_TITLE = "demo model"
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", HELDOUT, _CARD)


def ensure_demo_model(cache: Path | None = None) -> Path:
    """The folder of the trained demo model; trains it first where it is not there yet.

    cache: the folder that holds it; by default $WATTSERVE_CACHE, else wattserve/ in $XDG_CACHE_HOME or
    ~/.cache.
    Raises ConfigError where that cannot be written.
    """
    return ensure_model(Recipe(), cache or _default_cache())


def ensure_model(recipe: Recipe, cache: Path) -> Path:
    """As `ensure_demo_model`, for any recipe. Calls at the same time, in any processes, all end well."""
    folder = cache / f"demo-{recipe.digest()}"
    if _is_complete(folder):  # before any writing: a finished cache may be read-only
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f"{folder.name}.lock"):
            if not _is_complete(folder):
                _build(recipe, folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write the demo model to the cache folder {cache}: {error.strerror or error}; "
            "set WATTSERVE_CACHE to a folder that can be written"
        ) from error
    return folder


def _default_cache() -> Path:
    chosen = os.environ.get("WATTSERVE_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or os.path.expanduser("~/.cache")) / "wattserve"


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FILES)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is inside. The kernel lets go when a process dies."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{_TITLE}: another process is making it; waiting", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, folder: Path) -> None:
    """Train into a sibling folder and rename it: under its final name a folder is whole or absent."""
    for remains in folder.parent.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(remains, ignore_errors=True)  # of a process that was killed: we hold the lock
    shutil.rmtree(folder, ignore_errors=True)  # incomplete: somebody deleted from it
    partial = folder.with_name(f"{folder.name}.partial-{secrets.token_hex(4)}")
    partial.mkdir()
    try:
        with progress_on_stderr(_TITLE) as report:
            _write(train(recipe, report), recipe, partial)
            report("ready", 1.0)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(trained: Trained, recipe: Recipe, folder: Path) -> None:
    with _quiet_transformers():
        trained.model.save_pretrained(folder)
        trained.tokenizer.save_pretrained(folder)
    # safetensors writes for the owner only; the folder may serve others, as in an image built by root.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    rows = ({"text": review.text, "label": review.label} for review in trained.heldout)
    (folder / HELDOUT).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (folder / _CARD).write_text(_model_card(trained, recipe), encoding="utf-8")


def _model_card(trained: Trained, recipe: Recipe) -> str:
    """Markdown. Holds nothing that differs between two runs of the same recipe, such as dates."""
    lengths = trained.lengths
    return (
        (files(__package__) / "card.md")
        .read_text("utf-8")
        .format(
            recipe=recipe,
            trained=trained,
            parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
            vocabulary=len(trained.tokenizer),
            training=sum(lesson.reviews for lesson in recipe.course),
            last_lesson=recipe.course[-1],
            heldout=len(trained.heldout),
            positive=sum(review.label for review in trained.heldout) / len(trained.heldout),
            shortest=min(lengths),
            median=median(lengths),
            mean=fmean(lengths),
            p95=quantiles(lengths, n=20)[-1],
            longest=max(lengths),
            software="\n".join(f"- {name} {version}" for name, version in versions().items()),
        )
    )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without its own progress bars, which would break ours."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def progress_on_stderr(title: str) -> Iterator[Report]:
    """Tells the operator how far it is: a bar on a terminal, a few lines elsewhere."""
    if not sys.stderr.isatty():
        yield _ProgressLines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=1.0)
        yield lambda stage, done: progress.update(task, completed=done, description=f"{title}: {stage}")


class _ProgressLines:
    """One line for each new stage and for each further quarter of the work."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last: tuple[str, int] | None = None

    def __call__(self, stage: str, done: float) -> None:
        mark = stage, int(done * 4)
        if mark != self._last:
            self._last = mark
            print(f"{self._title}: {stage} ({done:.0%})", file=sys.stderr, flush=True)
