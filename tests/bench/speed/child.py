"""A process that is measured: it blocks on a pipe until it is asked for a turn, one JSON line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO, Any, cast

from tests.bench.speed.figures import BenchError
from tests.fixtures.server import environment

PLAIN_LACKS = (
    *("OMP_", "GOMP_", "KMP_", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"),
)
"""How variables begin that a script which knows of no such thing would not have set."""

LAST_WORDS = 15
"""Lines of its standard error to show when it fails."""


class Child:
    """errors: the file that its standard error goes to."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._name = name
        self._process = process
        self._errors = errors

    def ask(self, what: str, **arguments: Any) -> Any:
        """Its answer. Raises BenchError with its words, or when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._failure(f"ended with code {self._process.wait()} when asked for {what!r}")
        answer = json.loads(line)
        if "error" in answer:
            raise self._failure(f"failed when asked for {what!r}: {answer['error']}")
        return answer["result"]

    def _failure(self, words: str) -> BenchError:
        self._errors.seek(0)
        said = "".join(self._errors.readlines()[-LAST_WORDS:]).strip()
        return BenchError(f"{self._name} {words}\nIts last words: {said or 'none'}")


@contextmanager
def running_child(
    name: str,
    module: str,
    *arguments: str,
    is_plain: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Child]:
    """Until the block ends. is_plain: without any of our settings of thread libraries. variables: further
    ones of its environment."""
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=(plain(environment()) if is_plain else environment()) | dict(variables or {}),
        ) as process,
    ):
        try:
            child = Child(name, process, errors)
            child.ask("ready")
            yield child
        finally:
            process.kill()
            with suppress(BrokenPipeError):  # it may not have read what it was asked
                cast(IO[str], process.stdin).close()


def plain(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(PLAIN_LACKS)}


def reply(result: Any) -> str:
    """In the child: the line to write for an answer, or for an exception."""
    if isinstance(result, Exception):  # whoever asked says it, and stops
        traceback.print_exception(result)
        return json.dumps({"error": f"{type(result).__name__}: {result}"})
    return json.dumps({"result": result})


def answer_turns(target: object) -> None:
    """In a child, to its end: what is asked for are methods of `target`."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = getattr(target, asked.pop("what"))(**asked)
        except Exception as error:
            result = error
        print(reply(result), flush=True)


def whole_set(ordered: Sequence[Any], size: int) -> list[Any]:
    """Cut into batches of `size`; the last may be smaller."""
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
