"""A fake Wattserve server, for the tests of programs that call one.

It runs in the test's own process, on a free port of the loopback, and speaks the real protocol: the code
under test uses the real `Client` or `AsyncClient`.

    from wattserve_client import Client
    from wattserve_client.testing import FakeServer

    def test_we_like_delightful_films():
        with FakeServer(labels=("negative", "positive"), variants=("fp32", "bf16")) as server:
            server.answer("a delightful film", label="positive", energy_joules=0.04)
            with Client(server.target) as client:
                answer = client.predict("a delightful film", variant="bf16")
            assert answer.label == "positive"
            assert server.requests[0].variant == "bf16"

No model runs and nothing is measured: energies are what the test says, and every receipt says that they
are simulated by a fake. A sequence for which nothing was scripted is refused (INVALID_ARGUMENT), never
answered with something made up; and so is what the real server refuses: an empty text, a priority above 3, or
what is beyond the limits that `server_info` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self, Unpack

from wattserve_client._fake.ledger import fake_variant
from wattserve_client._fake.requests import FakeRequest as Request
from wattserve_client._fake.requests import Given, refusal
from wattserve_client._fake.script import DEFAULT_ENERGY_JOULES, Reply, ReplyFields, Script
from wattserve_client._fake.server import FakeService, listen
from wattserve_client.errors import WattserveError
from wattserve_client.reports import Variant
from wattserve_proto.v1 import inference_pb2 as pb

__all__ = ["DEFAULT_ENERGY_JOULES", "FakeServer", "Given", "Reply", "Request"]

_METHODS = tuple(pb.DESCRIPTOR.services_by_name["Inference"].methods_by_name)


class FakeServer:
    """Listens from its creation until `close`, at the address `target`. All methods may be called from any
    thread, also while requests are answered.

    `labels`: of the classifier; empty for a model that gives embeddings. `variants`: names, or `Variant`
    for one that is a proxy, verified, unloaded, ...; the first is the default one. `settles`: a receipt is
    final as soon as its prediction was answered, or at once for who waits for it; False: not before
    `settle`. `delay_s`: seconds that each prediction takes. On receipts, the tokens of a text are its words.
    """

    def __init__(
        self,
        *,
        labels: Sequence[str] = ("negative", "positive"),
        variants: Sequence[str | Variant] = ("fp32",),
        settles: bool = True,
        delay_s: float = 0.0,
    ) -> None:
        served = [fake_variant(given) if isinstance(given, str) else given for given in variants]
        if not served or len({variant.name for variant in served}) != len(served):
            raise ValueError("variants must be at least one, each with a name of its own")
        self._service = FakeService(Script(labels), served, settles, delay_s)
        self._stop, self.target = listen(self._service)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end what is open with UNAVAILABLE. May be called twice."""
        self._stop()

    def answer(self, given: str | Sequence[int], *, variant: str = "", **reply: Unpack[ReplyFields]) -> None:
        """Script the reply to a text, or to the token ids of a sequence: the fields of `Reply`.

        It holds for every request from now on, of `variant` alone if that is named, and for each sequence
        of a request by itself.
        """
        scripted = Reply(**reply)
        with self._service.changed:
            self._service.script.put(given, variant, scripted)

    def answer_next(self, **reply: Unpack[ReplyFields]) -> None:
        """Script the reply to the next sequence, whatever it is, once; again for the one after it."""
        scripted = Reply(**reply)
        with self._service.changed:
            self._service.script.put_next(scripted)

    def otherwise(
        self, function: Callable[[Given], Reply] | None = None, **reply: Unpack[ReplyFields]
    ) -> None:
        """Script the reply to everything else: one reply, or a function of the sequence that gives one.

        The function is called on the server's threads, perhaps on several at once.
        """
        if function is not None and reply:
            raise ValueError("otherwise() takes a function or the fields of a reply, not both")
        scripted = function or Reply(**reply)
        with self._service.changed:
            if isinstance(scripted, Reply):
                self._service.script.row(scripted)
            self._service.script.otherwise = scripted

    def fail_next(
        self,
        error: str | type[WattserveError],
        message: str = "the test said so",
        *,
        method: str = "Predict",
        times: int = 1,
        field: str = "",
        reason: str = "",
        retry_after_s: float | None = None,
        receipt_id: str = "",
    ) -> None:
        """Script the failure of the next call, or of the next `times` calls.

        `error`: what the client is to raise, such as `NotPossible`, or a gRPC status code's name. `reason`,
        `retry_after_s`: by default those of the real server for that code. `receipt_id`: what the error says
        was charged; there is no such receipt here. `method`: of the protocol;
        "Predict" is also each input of a `predict_many`, and "PredictStream" ends one as a whole.

        A client repeats some calls by itself, up to five times in all: a prediction that is `Overloaded`,
        anything but a stream that is `Unavailable`. To see such an error, `times=5`, or a client with
        `retry=False`.
        """
        if method not in _METHODS:
            raise ValueError(f"no method {method!r}; there are {', '.join(_METHODS)}")
        for _ in range(times):
            failure = refusal(
                error,
                message,
                field=field,
                reason=reason,
                retry_after_s=retry_after_s,
                receipt_id=receipt_id,
            )
            with self._service.changed:
                self._service.script.put_failure(method, failure)

    def settle(self) -> None:
        """Make every receipt final that is not: settled, or unknown where the script says so."""
        self._service.settle()

    @property
    def delay_s(self) -> float:
        """Seconds that each prediction takes."""
        return self._service.delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        self._service.delay_s = seconds

    @property
    def requests(self) -> tuple[Request, ...]:
        """The predictions that were asked for, in the order of their arrival, refused ones included."""
        with self._service.changed:
            return tuple(self._service.requests)
