"""What the fake server of `testing` does with a call, and the one lock around all that it knows. No grpc."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wattserve_client._fake import messages
from wattserve_client._fake.books import Books, Entry
from wattserve_client._fake.checks import check
from wattserve_client._fake.errors import Refusal, refusal
from wattserve_client._fake.script import Given, Reply, Request, Script
from wattserve_client.reports import Variant, VariantState
from wattserve_proto.v1 import inference_pb2 as pb


@dataclass
class Call:
    """One call, as far as the core must know it."""

    has_ended: bool = False  # the caller has left


class Core:
    def __init__(self, script: Script, variants: Sequence[Variant], settles: bool, delay_s: float) -> None:
        self.changed = threading.Condition()  # the lock, and news of a receipt or of a call's end
        self.script = script
        self.requests: list[Request] = []
        self.delay_s = delay_s
        self._settles = settles
        self._variants = {each.name: each for each in variants}
        self._default = variants[0].name
        self._instance_id = uuid.uuid4().hex[:12]
        self._books = Books(self._instance_id)

    def end(self, call: Call) -> None:
        with self.changed:
            call.has_ended = True
            self.changed.notify_all()

    def fail_if_scripted(self, method: str) -> None:
        with self.changed:
            self.script.fail(method)

    def predict(self, message: pb.PredictRequest, call: Call, *, streamed: bool) -> pb.PredictResponse:
        request = messages.request_of(message, streamed=streamed)
        with self.changed:
            self.requests.append(request)
            if self.delay_s:
                self.changed.wait_for(lambda: call.has_ended, self.delay_s)
            self.script.fail("Predict")
            variant = self._ready(request.variant)
            check(message, request.inputs)
            found = [self.script.find(each, variant.name) for each in request.inputs]
        replies = [
            each if isinstance(each, Reply) else self._asked(each(given), given)
            for each, given in zip(found, request.inputs, strict=True)
        ]
        with self.changed:
            entry = self._books.open(request.request_id, variant, replies, request.inputs)
            if request.wait_for_settled_energy:
                self._until_final(entry, call)
            receipt = entry.message()
            if self._settles:
                self._settle(entry)
        return messages.response(request.request_id, variant.name, replies, self.script, receipt)

    def settle(self) -> None:
        with self.changed:
            for entry in self._books.entries.values():
                self._settle(entry)

    def receipt(self, receipt_id: str, call: Call, *, wait: bool) -> pb.Receipt:
        with self.changed:
            entry = self._entry(receipt_id)
            if wait:
                self._until_final(entry, call)
            return entry.message()

    def watch(self, receipt_ids: Sequence[str], call: Call) -> Iterator[pb.Receipt]:
        with self.changed:
            entries = [self._entry(each) for each in receipt_ids]
        for entry in entries:
            with self.changed:
                self._until_final(entry, call)
            if call.has_ended:
                return
            yield entry.message()

    def watch_all(self, call: Call) -> Iterator[pb.Receipt]:
        """Begins with the call of this method, not with the first step of its iterator."""
        with self.changed:
            place = len(self._books.finals)
        return self._finals_from(place, call)

    def _finals_from(self, place: int, call: Call) -> Iterator[pb.Receipt]:
        while True:
            with self.changed:
                while len(self._books.finals) <= place and not call.has_ended:
                    self.changed.wait()
                if call.has_ended:
                    return
                message = self._books.finals[place].message()
            yield message
            place += 1

    def server_info(self) -> pb.ServerInfo:
        with self.changed:
            return messages.server_info(self._instance_id, self.script.labels, [*self._variants.values()])

    def energy_report(self) -> pb.EnergyReport:
        with self.changed:
            return self._books.report([*self._variants.values()])

    def change_state(self, name: str, state: VariantState) -> pb.VariantInfo:
        with self.changed:
            variant = replace(self._named(name), state=state, state_reason="")
            self._variants[name] = variant
            return messages.variant_info(variant)

    def _named(self, name: str) -> Variant:
        if name not in self._variants:
            raise refusal(
                "NOT_FOUND",
                f"no variant {name!r}; the fake server has {', '.join(self._variants)}",
                field="variant",
            )
        return self._variants[name]

    def _ready(self, name: str) -> Variant:
        variant = self._named(name or self._default)
        if variant.state is not VariantState.READY:
            why = f": {variant.state_reason}" if variant.state_reason else ""
            raise refusal("FAILED_PRECONDITION", f"{variant.name!r} is {variant.state}{why}", field="variant")
        return variant

    def _asked(self, reply: object, given: Given) -> Reply:
        if not isinstance(reply, Reply):
            raise TypeError(
                f"the function given to otherwise() returned {reply!r} for {given!r}, not a Reply"
            )
        self.script.row(reply)
        return reply

    def _entry(self, receipt_id: str) -> Entry:
        entry = self._books.entries.get(receipt_id)
        if entry is None:
            raise refusal("NOT_FOUND", f"no receipt {receipt_id!r}", field="receipt_id")
        return entry

    def _settle(self, entry: Entry) -> None:
        self._books.settle(entry)
        self.changed.notify_all()

    def _until_final(self, entry: Entry, call: Call) -> None:
        if self._settles:
            self._settle(entry)
        self.changed.wait_for(lambda: entry.is_final or call.has_ended)


def bug_in_a_test(error: Exception) -> Refusal:
    """For what a test's own function raised, or returned that makes no sense."""
    return refusal(
        "INTERNAL", f"the fake server's script failed: {type(error).__name__}: {error}", reason="INTERNAL"
    )
