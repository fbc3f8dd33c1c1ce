"""The client for ordinary code: `Client` blocks until the answer is there.

    with Client("127.0.0.1:50051") as client:
        answer = client.predict("a delightful film", wait_for_settled_energy=True)
        print(answer.label, answer.receipt)

Every method raises the errors of `errors`. `AsyncClient` in `aio` has the same methods for asyncio.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

import grpc

from wattserve_client import _requests
from wattserve_client._at_exit import closed_at_exit
from wattserve_client._channel import DEFAULT_IN_FLIGHT, DEFAULT_TIMEOUT_S, HEALTH_CHECK, Link, Tries
from wattserve_client._generate import (
    CHARGED,
    GenerateOptions,
    GenerationBook,
    GenerationStream,
    Prompt,
    ScoreOptions,
    generate_request,
    score_request,
)
from wattserve_client._requests import FloatArray, Inputs, PredictOptions, bare_request
from wattserve_client._servers import DEFAULT_TARGET, Owners, PathLike, Tls
from wattserve_client._stream import StreamBook, answers
from wattserve_client.errors import Unavailable, WattserveError
from wattserve_client.generations import Generation, GenerationPiece, Scores
from wattserve_client.keys import ApiKey
from wattserve_client.reports import EnergyReport, ServerInfo, Variant
from wattserve_client.results import Answer, FoundReceipts, Prediction, Receipt
from wattserve_client.usage import UsageReport
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc

R = TypeVar("R")


class Client:
    """A connection to one server, or to several; opened by the first call, usable from several threads.

    `target`: host:port. A list of those spreads the predictions over these servers in turn, passing over
    the ones out of reach; a `predict_many` stays with one, but for inputs above 4 MiB. Host names in a list
    are looked up once, now; one without an address counts as out of reach. What concerns one server is
    asked of each of `members`.
    `timeout_s`: the deadline in seconds of every call that names none of its own. `retry`: repeat what is
    safe to repeat (see `_channel`); off, every refusal is seen, for measuring. `tls`: True, or a `Tls` that
    says more; several hosts must all show one name, `Tls.server_name`. `api_key`: for a server that asks for
    one; or `api_key_file`, a file that holds it and may change; by default the variable WATTSERVE_API_KEY,
    where it is set. ValueError where a key would be sent to another machine without TLS.
    """

    def __init__(
        self,
        target: str | Sequence[str] = DEFAULT_TARGET,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: bool = True,
        tls: bool | Tls = False,
        api_key: str | None = None,
        api_key_file: PathLike | None = None,
    ) -> None:
        key = ApiKey(api_key, api_key_file)
        link = self._link = Link(target, timeout_s, retry, tls, key)
        self._channel = link.open_blocking()
        self._open_stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._closed = threading.Event()
        several = link.addresses if link.has_several else ()
        self._members = tuple(
            Client(
                address,
                timeout_s=timeout_s,
                retry=retry,
                tls=tls,
                api_key=api_key,
                api_key_file=api_key_file,
            )
            for address in several
        )
        self._owners = Owners(link.target, self._members)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it: open calls end with `Cancelled`, new ones raise RuntimeError. May be called twice."""
        self._closed.set()
        for member in self._members:
            member.close()
        self._channel.close()

    @property
    def target(self) -> str:
        """The address; several are joined by commas."""
        return self._link.target

    @property
    def members(self) -> tuple[Client, ...]:
        """A client for each address, in their order; of a client with one address, itself."""
        return self._members or (self,)

    def predict(
        self,
        inputs: Inputs,
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        priority: int = 0,
        truncate: bool = False,
        max_energy_uj: int | None = None,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Predict one or several sequences, in one request.

        `inputs`: a text or a list of texts; the token ids of one sequence (list of int, 1-d integer
        array) or of several (list of those, 2-d integer array); the pixels of one image (3-d float array)
        or of several (4-d), as in `predict_images`; or a mapping of names to arrays.
        Anything else raises TypeError or ValueError, and nothing is sent. `variant`: "" is the
        server's default. `request_id`: yours, echoed. `wait_for_settled_energy`: answer when the
        energy is settled rather than at once with a provisional receipt. `priority`: whose turn it is
        while requests wait: 1 goes first, 3 last, 2 and 0 as usual. `truncate`: cut a text that is longer
        than the model takes, rather than have it refused; `Prediction.cut_tokens` says how much is missing.
        `max_energy_uj`: refused as `NotPossible`, before it runs, where the server predicts that it will cost
        more (its reason is ENERGY_LIMIT), or cannot tell (LAW_UNKNOWN).
        """
        bare = bare_request(variant, wait_for_settled_energy, priority, request_id, truncate, max_energy_uj)
        request = _requests.with_inputs(bare, inputs)
        tries = Tries(self._link, timeout_s)
        return self._tried(
            tries, lambda: self._call(self._stub.Predict, request, Prediction, tries.left_s, tries.asked_s)
        )

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Have a language model go on with a prompt: a text, or its token ids. Returns the whole answer.

        `max_new_tokens`: at the most (left out: the server's default, 128). `temperature`, `top_k`, `top_p`,
        `repetition_penalty`, `seed`: how tokens are drawn; left out, the likeliest, always. `stop`: a text
        before which it ends, or several; `stop_token_ids`; `ignore_eos`: it goes on behind the model's own
        end. `logprobs`: of each token, and of so many of the likeliest in its place. `max_energy_uj`: it ends
        once it has cost so much. The others, and what is repeated, are as in `predict`.
        """
        with self.generate_stream(prompt, **options) as stream:
            for _ in stream:
                pass
            return stream.result

    def generate_stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationStream:
        """As `generate`, piece by piece as they come; then `result` has all of it.

        `timeout_s` bounds the whole of it. Once there was a piece nothing is repeated.
        """
        request = generate_request(prompt, options)
        tries, book = Tries(self._link, options.get("timeout_s")), GenerationBook(self._link)
        pieces: Generator[GenerationPiece, None, None] = self._pieces(request, tries, book)
        return GenerationStream(closed_at_exit(pieces), book)

    def score(self, inputs: Inputs, **options: Unpack[ScoreOptions]) -> Scores:
        """How likely a language model finds given texts, or token ids: the log-probability of each token."""
        request = score_request(inputs, options)
        tries = Tries(self._link, options.get("timeout_s"))
        return self._tried(
            tries, lambda: self._call(self._stub.Score, request, Scores, tries.left_s, tries.asked_s)
        )

    def predict_images(self, pixels: FloatArray, **options: Unpack[PredictOptions]) -> Prediction:
        """Classify one image, [channels, height, width], or several, [images, channels, height, width].

        `pixels`: of the size that `server_info().pixel_shape` says, scaled and normalised as the model's
        preprocessor does it; any float type, sent as float32. The rest is as in `predict`.
        """
        return self.predict(_requests.images(pixels), **options)

    def predict_many(
        self,
        inputs: Iterable[Inputs],
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        priority: int = 0,
        truncate: bool = False,
        max_energy_uj: int | None = None,
        timeout_s: float | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
    ) -> Generator[Answer, None, None]:
        """Predict each item of an iterable over one stream; yields an `Answer` for each as it finishes.

        The iterable is taken from lazily and on the caller's thread, between answers: at most
        `in_flight` inputs are with the server. An item that fails, or that cannot be sent, yields an
        Answer with an error and does not disturb the others; what ends the stream is raised. One of more
        than 4 MiB, which the server may refuse to take, goes by a stream of its own. Unlike with `predict`,
        nothing is repeated, also not an item refused as OVERLOADED or STARTING_OR_STOPPING.
        `request_id`: yours; the input n, from 0, is then asked as "request_id/n", otherwise as "n", as on any
        other stream.
        `timeout_s` bounds the silence: the longest wait for the next answer, by default the client's
        deadline. Leaving the loop, or closing the generator, cancels what is in flight.
        """
        bare = bare_request(variant, wait_for_settled_energy, priority, request_id, truncate, max_energy_uj)
        book = StreamBook(self._link, inputs, bare, in_flight)
        seconds = self._link.seconds(timeout_s)
        return closed_at_exit(answers(self._link, self._open, iter(inputs), book, seconds))

    def receipt(
        self, receipt_id: str, *, wait_until_settled: bool = False, timeout_s: float | None = None
    ) -> Receipt:
        """The receipt of an earlier request; `NotFound` when the server no longer keeps it.

        Of several servers, the one that has it is found. `Unavailable` when none in reach has it, and
        others are out of reach.
        """
        request = _requests.receipt_request(receipt_id, wait_until_settled)
        if self._members:
            return self._search(request, self._link.seconds(timeout_s))
        return self._call(self._stub.GetReceipt, request, Receipt, timeout_s)

    def find_receipts(
        self, request_id: str, *, wait_until_settled: bool = False, timeout_s: float | None = None
    ) -> FoundReceipts:
        """The receipts of your own `request_id`, newest first, also of a request that still runs: what a call
        cost that was cancelled, passed its deadline or lost its connection. `NotFound` when nothing of such
        a request ran, or the server no longer keeps it.

        Of several servers, all in reach are asked. `Unavailable` when none of these has one, and others are
        out of reach.
        """
        request = _requests.find_request(request_id, wait_until_settled)
        if self._members:
            return self._find(request, self._link.seconds(timeout_s))
        return self._call(self._stub.FindReceipts, request, FoundReceipts, timeout_s)

    def watch_receipts(
        self, receipt_ids: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> Generator[Receipt, None, None]:
        """Settled receipts as they settle: these, until all have come; or, where `receipt_ids` is left
        out, all, without end.

        The watch starts with the call and has no deadline unless `timeout_s` gives one; leaving the
        loop, or closing the generator, ends it.
        """
        seconds = None if timeout_s is None else self._link.seconds(timeout_s)
        call = self._one_stub.WatchReceipts(
            _requests.watch_request(receipt_ids), timeout=seconds, metadata=self._link.metadata
        )
        return closed_at_exit(self._receipts(call, seconds))

    def is_ready(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server takes requests now: False while it starts, shuts down or is out of reach."""
        return not self._why_not_ready(timeout_s)

    def _why_not_ready(self, timeout_s: float | None) -> str:
        self._link.check_one_server()
        seconds = self._link.seconds(timeout_s)
        if self._closed.is_set():
            raise RuntimeError("this client is closed")
        ask: Any = self._channel.unary_unary(HEALTH_CHECK)
        try:
            return self._link.why_not_ready(ask(b"", timeout=seconds), seconds)
        except grpc.RpcError as error:
            return self._link.why_not_ready(error, seconds)

    def server_info(self, *, timeout_s: float | None = None) -> ServerInfo:
        """What is served, by what, under which limits."""
        return self._call(self._one_stub.GetServerInfo, pb.GetServerInfoRequest(), ServerInfo, timeout_s)

    def energy_report(self, *, timeout_s: float | None = None) -> EnergyReport:
        """The ledger: where every microjoule of the meter stands."""
        return self._call(
            self._one_stub.GetEnergyReport, pb.GetEnergyReportRequest(), EnergyReport, timeout_s
        )

    def usage(
        self,
        since_unix_s: int,
        until_unix_s: int,
        *,
        by_tenant: bool = False,
        by_variant: bool = False,
        by_hour: bool = False,
        timeout_s: float | None = None,
    ) -> UsageReport:
        """What the server's account book holds of a span, in unix seconds, its end not included: by tenant,
        variant and hour where that is asked for. `NotPossible` of a server without an account book."""
        request = _requests.usage_request(since_unix_s, until_unix_s, by_tenant, by_variant, by_hour)
        return self._call(self._one_stub.GetUsage, request, UsageReport, timeout_s)

    def load_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server make a variant ready, which may take minutes; returns when it is.

        `NotPossible` when it cannot be made, or would not fit the server's limit of model memory.
        """
        request = pb.LoadVariantRequest(variant=_requests.text(name, "name"))
        return self._call(self._one_stub.LoadVariant, request, Variant, timeout_s)

    def unload_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server let go of a variant's memory, once its accepted requests are answered."""
        request = pb.UnloadVariantRequest(variant=_requests.text(name, "name"))
        return self._call(self._one_stub.UnloadVariant, request, Variant, timeout_s)

    @property
    def _stub(self) -> inference_pb2_grpc.InferenceStub:
        if self._closed.is_set():
            raise RuntimeError("this client is closed")
        return self._open_stub

    @property
    def _one_stub(self) -> inference_pb2_grpc.InferenceStub:
        """For the calls that concern one server."""
        self._link.check_one_server()
        return self._stub

    def _call(
        self,
        method: Any,
        request: object,
        kind: type[R],
        timeout_s: float | None,
        asked_s: float | None = None,
    ) -> R:
        """asked_s: where several calls share a deadline, all of it."""
        seconds = self._link.seconds(timeout_s)
        try:
            message = method(request, timeout=seconds, metadata=self._link.metadata)
        except grpc.RpcError as error:
            raise self._link.failure(error, asked_s or seconds, may_have_run=kind in CHARGED) from error
        return self._link.read(kind, message)

    def _tried(self, tries: Tries, call: Callable[[], R]) -> R:
        """What the first try gives that is not refused."""
        while True:
            try:
                return call()
            except Unavailable as refusal:
                pause_s = tries.pause_s(refusal)
                if pause_s is None:
                    raise
            if self._closed.wait(pause_s):
                raise self._link.closed()

    def _pieces(
        self, request: pb.GenerateRequest, tries: Tries, book: GenerationBook
    ) -> Generator[GenerationPiece, None, None]:
        while True:
            call = self._stub.Generate(request, timeout=tries.left_s, metadata=self._link.metadata)
            try:
                for message in call:
                    if (piece := book.take(message)) is not None:
                        yield piece
                return book.check_ended()
            except grpc.RpcError as error:
                failure = self._link.failure(error, tries.asked_s, may_have_run=True)
                if book.has_begun or not isinstance(failure, Unavailable):
                    raise failure from error
                pause_s = tries.pause_s(failure)
                if pause_s is None:
                    raise failure from error
            finally:
                call.cancel()
            if self._closed.wait(pause_s):
                raise self._link.closed()

    def _search(self, request: pb.GetReceiptRequest, seconds: float) -> Receipt:
        """The receipt from whichever member has it. All are asked at once: one out of reach hides none."""
        asked = self._owners.to_ask(request.receipt_id)
        calls = {
            member._stub.GetReceipt.future(request, timeout=seconds, metadata=member._link.metadata): member
            for member in asked
        }
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for call in calls:
            call.add_done_callback(ended.put)
        errors: list[WattserveError] = []
        try:
            while len(errors) < len(calls):
                call = ended.get()
                member = calls[call]
                try:
                    receipt = member._link.read(Receipt, call.result())
                except grpc.RpcError as error:
                    errors.append(member._link.failure(error, seconds))
                else:
                    self._owners.note(request.receipt_id, member)
                    return receipt
        finally:
            for call in calls:
                call.cancel()
        raise self._owners.missing(f"the receipt {request.receipt_id!r}", errors)

    def _find(self, request: pb.FindReceiptsRequest, seconds: float) -> FoundReceipts:
        """What all members keep, which are asked at once."""
        calls = [
            (
                member,
                member._stub.FindReceipts.future(request, timeout=seconds, metadata=member._link.metadata),
            )
            for member in self._members
        ]
        found: list[FoundReceipts] = []
        errors: list[WattserveError] = []
        try:
            for member, call in calls:
                try:
                    found.append(member._link.read(FoundReceipts, call.result()))
                except grpc.RpcError as error:
                    errors.append(member._link.failure(error, seconds))
        finally:
            for _, call in calls:
                call.cancel()
        return self._owners.joined(request.request_id, found, errors)

    def _open(self, requests: Iterator[pb.PredictRequest]) -> Any:
        return self._stub.PredictStream(requests, metadata=self._link.metadata)

    def _receipts(self, call: Any, seconds: float | None) -> Generator[Receipt, None, None]:
        try:
            for message in call:
                yield self._link.read(Receipt, message)
        except grpc.RpcError as error:
            raise self._link.failure(error, seconds) from error
        finally:
            call.cancel()
