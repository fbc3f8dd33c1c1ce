"""An engine for PostgreSQL whose every answer is waited for within a bound.

A database that does not answer must not hold the writer up for longer than memory lasts, nor let the book
pass for written meanwhile. The bound on statements is the database's own, which one that is frozen does not
keep; its machine still acknowledges what is sent, so that TCP sees nothing either. Hence the bound here.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg
from sqlalchemy import URL, Dialect, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

STATEMENT_S = 10
ANSWER_S = 12.0  # somewhat more: the database says more than silence does
_SETTINGS = {
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "options": f"-c statement_timeout={STATEMENT_S * 1000}",
    "keepalives_idle": 5,
    "tcp_user_timeout": 10_000,
}


class _Bounded(psycopg.Connection[Any]):
    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        return super().wait(self._within(gen, time.monotonic() + ANSWER_S), *arguments, **options)

    def _within(self, gen: Any, until_s: float) -> Any:
        """The same generator, which psycopg also resumes, with 0, when nothing has come for a moment."""
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > until_s:
                    self.close()
                    raise psycopg.OperationalError(f"the database has not answered for {ANSWER_S:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def engine_of(url: URL) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args=_SETTINGS)

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Dialect, entry: ConnectionPoolEntry, args: Any, options: Any) -> Any:
        return _Bounded.connect(*args, **options)

    return engine
