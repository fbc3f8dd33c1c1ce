"""What the native protocol tells of receipts: by their ids, by their requests', and as they become final."""

from __future__ import annotations

import asyncio
import time
from asyncio import sleep
from collections.abc import AsyncIterator, Iterable
from itertools import chain
from typing import Any, TypeVar

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.receipt import Receipt
from wattserve_server.errors import InvalidRequest, NotFound, OverloadedError
from wattserve_server.service.caller import CALLER
from wattserve_server.service.checks import check_request_id
from wattserve_server.service.inference import receipt_message
from wattserve_server.service.methods import CALL, check_unread
from wattserve_server.service.prediction import Host, Predictor, Serving
from wattserve_server.service.stored import Sees

MOST_WATCHED = 10_000  # receipts by one call

LONGEST_ID = 100  # of a receipt that is looked up in an account book

MOST_FOUND = 100  # receipts of one request id in an answer, and for what one call costs a tenant
LONG_S = 0.0005  # of the event loop, for an answer
MOST_LINES = 1000  # of all receipts of an answer but the newest

R = TypeVar("R", Receipt, pb.Receipt)


def _fitting(newest_first: Iterable[R]) -> tuple[list[R], bool]:
    """Those that one answer holds, and whether there are more."""
    fitting: list[R] = []
    lines = 0
    for receipt in newest_first:
        lines += len(receipt.lines) if fitting else 0
        if len(fitting) == MOST_FOUND or lines > MOST_LINES:
            return fitting, True
        fitting.append(receipt)
    return fitting, False


async def _of_account_book(host: Host, receipt_id: str, sees: Sees, unknown: NotFound) -> pb.Receipt:
    """A receipt that this run does not hold, or no longer. unknown: what is said where there is no book."""
    if host.stored is None or len(receipt_id) > LONGEST_ID:
        raise unknown
    body = await host.stored.receipt(receipt_id, sees)
    if body is None:
        raise NotFound(
            f"no receipt {receipt_id!r}: it is not of the last ones of this run, and the account book, which "
            f"keeps receipts {host.stored.keeps}, holds none of that id",
            "receipt_id",
        )
    return pb.Receipt.FromString(body)


class ReceiptMethods:
    _serving: Serving
    _predictor: Predictor
    telling: asyncio.Lock

    async def _told(self, host: Host, receipts: Iterable[Receipt]) -> list[pb.Receipt]:
        """A line takes 3 us to write. However many calls ask, one writes after the other, and the event loop
        has three times as long for everything else."""
        async with self.telling:
            check_unread()
            begun_s = time.perf_counter()
            told = [receipt_message(receipt, host.sources_of(receipt)) for receipt in receipts]
            took_s = time.perf_counter() - begun_s
            if took_s > LONG_S:
                await sleep(3 * took_s)
            return told

    async def GetReceipt(self, request: pb.GetReceiptRequest, context: Any) -> pb.Receipt:
        host, sees = self._serving.get(), CALLER.get().sees
        try:
            receipt = host.engine.book.get(request.receipt_id, sees)
        except NotFound as error:
            return await _of_account_book(host, request.receipt_id, sees, error)
        if request.wait_until_settled:
            await host.until_settled(receipt)
        (told,) = await self._told(host, [receipt])
        return told

    async def FindReceipts(self, request: pb.FindReceiptsRequest, context: Any) -> pb.FindReceiptsResponse:
        host = self._serving.get()
        if not request.request_id:
            raise InvalidRequest("is empty; a receipt is found by the id that its request had", "request_id")
        request_id = check_request_id(request.request_id, "request_id")
        sees = CALLER.get().sees
        try:
            found = host.engine.book.find(request_id, MOST_FOUND + 1, sees)
        except NotFound:
            if host.stored is None:
                raise
            found = []
        listed, has_more = _fitting(found)
        if request.wait_until_settled:
            await host.until_settled(*listed)
        told = await self._told(host, listed)
        if host.stored is not None and not has_more:
            own = {message.receipt_id for message in told}
            bodies = await host.stored.of_request(request_id, MOST_FOUND + 1, sees)
            stored = (each for each in map(pb.Receipt.FromString, bodies) if each.receipt_id not in own)
            told, has_more = _fitting(chain(told, stored))
            if not told:
                raise NotFound(
                    f"no receipt of a request {request_id[:80]!r}: nothing of one ran, or the account book, "
                    f"which keeps receipts {host.stored.keeps}, holds it no longer",
                    "request_id",
                )
        return pb.FindReceiptsResponse(receipts=told, older_left_out=has_more)

    async def WatchReceipts(
        self, request: pb.WatchReceiptsRequest, context: Any
    ) -> AsyncIterator[pb.Receipt]:
        host = self._serving.get()
        book = host.engine.book
        caller = CALLER.get()
        if len(request.receipt_ids) > MOST_WATCHED:
            raise InvalidRequest(
                f"{len(request.receipt_ids)} receipts; at most {MOST_WATCHED} are watched by one call",
                "receipt_ids",
            )
        if not request.receipt_ids:
            caller.check_watches()
            call = CALL.get()
            try:
                watch = book.watch(caller.sees, caller.name, on_overrun=call.cut)
            except OverloadedError as error:
                self._predictor.refused(error)
                raise
            try:
                await context.send_initial_metadata(())  # from now on, nothing that settles is missed
                async for receipt in watch:
                    yield receipt_message(receipt, host.sources_of(receipt))
            finally:
                watch.close()
            return
        if len(set(request.receipt_ids)) < len(request.receipt_ids):
            raise InvalidRequest("names a receipt twice; each is told once", "receipt_ids")
        self._predictor.count_more(caller, (len(request.receipt_ids) - 1) // MOST_FOUND)
        found: list[Receipt | str] = []
        for receipt_id in request.receipt_ids:
            try:
                found.append(book.get(receipt_id, caller.sees))
            except NotFound:  # what another run or replica wrote is final, and read again when its turn comes
                await self.GetReceipt(pb.GetReceiptRequest(receipt_id=receipt_id), context)
                found.append(receipt_id)
        for each in found:
            if isinstance(each, str):
                yield await self.GetReceipt(pb.GetReceiptRequest(receipt_id=each), context)
            else:
                await book.until_final(each)
                (told,) = await self._told(host, [each])
                yield told
