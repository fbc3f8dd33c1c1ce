"""The receipts and the ledger of the fake server of `testing`: what was scripted, added up. Pure: no grpc,
and no lock of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from wattserve_client._fake.script import Given, Reply
from wattserve_client.reports import Variant
from wattserve_proto.v1 import inference_pb2 as pb

SOURCE = pb.EnergySource(
    name="fake",
    method="apportioned simulation",
    quality=pb.ENERGY_QUALITY_SIMULATED,
    note="a fake server for tests: every figure is scripted, nothing was measured",
)


@dataclass(eq=False)
class Entry:
    """One answered prediction."""

    receipt_id: str
    request_id: str
    variant: Variant
    replies: tuple[Reply, ...]  # one per sequence
    tokens: tuple[int, ...]
    created_unix_ns: int
    is_final: bool = False

    @property
    def unknown_reason(self) -> str:
        return next((reply.unknown_reason for reply in self.replies if reply.unknown_reason), "")

    @property
    def energy_uj(self) -> int | None:
        """The settled figure, whether it is settled yet or not; None when it never becomes known."""
        return _sum([reply.energy_uj for reply in self.replies])

    def message(self) -> pb.Receipt:
        """What is known of it now."""
        provisional_uj = _sum([reply.provisional_uj for reply in self.replies])
        energy_uj = self.energy_uj if self.is_final else provisional_uj
        message = pb.Receipt(
            receipt_id=self.receipt_id,
            request_id=self.request_id,
            variant=self.variant.name,
            device=self.variant.device,
            outcome=pb.OUTCOME_COMPLETED,
            state=pb.ENERGY_STATE_SETTLED if self.is_final else pb.ENERGY_STATE_PROVISIONAL,
            source=SOURCE,
            energy_uj=energy_uj,
            provisional_energy_uj=provisional_uj,
            idle_policy="busy-time",
            split_rule="scripted",
            created_unix_ns=self.created_unix_ns,
            proxy=self.variant.proxy,
            unverified=not self.variant.verified,
        )
        if energy_uj is None:
            message.unknown_reason = self.unknown_reason
            message.state = pb.ENERGY_STATE_UNKNOWN if self.is_final else pb.ENERGY_STATE_PROVISIONAL
        else:
            message.idle_share_uj = 0
            if self.is_final:
                intervals = [reply.interval_uj for reply in self.replies]
                message.energy_low_uj = sum(low for low, _ in intervals)
                message.energy_high_uj = sum(high for _, high in intervals)
        for reply, tokens in zip(self.replies, self.tokens, strict=True):
            message.lines.add(
                energy_uj=reply.energy_uj if self.is_final else reply.provisional_uj,
                idle_share_uj=None if energy_uj is None else 0,
                tokens=tokens,
                padded_tokens=max(self.tokens),
                batch_size=len(self.tokens),
            )
            if energy_uj is None:
                message.lines[-1].ClearField("energy_uj")
        return message


class Books:
    """All receipts of one server, and in `finals` those that are final, in the order they became so."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._started_unix_ns = time.time_ns()
        self.entries: dict[str, Entry] = {}
        self.finals: list[Entry] = []

    def open(
        self, request_id: str, variant: Variant, replies: Sequence[Reply], inputs: Sequence[Given]
    ) -> Entry:
        entry = Entry(
            receipt_id=f"{self._instance_id}-{len(self.entries) + 1}",
            request_id=request_id,
            variant=variant,
            replies=tuple(replies),
            tokens=tuple(_tokens(each) for each in inputs),
            created_unix_ns=time.time_ns(),
        )
        self.entries[entry.receipt_id] = entry
        return entry

    def settle(self, entry: Entry) -> None:
        """Make it final, once."""
        if not entry.is_final:
            entry.is_final = True
            self.finals.append(entry)

    def report(self, variants: Sequence[Variant]) -> pb.EnergyReport:
        """The ledger, which holds the scripted energies and nothing else."""
        unsettled = [entry for entry in self.entries.values() if not entry.is_final]
        pending_uj = sum(reply.energy_uj or 0 for entry in unsettled for reply in entry.replies)
        settled = [reply for entry in self.finals for reply in entry.replies]
        active = [self._active(variant) for variant in variants]
        return pb.EnergyReport(
            source=SOURCE,
            device=variants[0].device,
            since_unix_ns=self._started_unix_ns,
            until_unix_ns=(now := time.time_ns()),
            now_unix_ns=now,
            measured_uj=sum(each.active_uj for each in active) + pending_uj,
            active=active,
            warmup_uj=0,
            idle_uj=0,
            idle_shared_uj=0,
            unattributed_uj=0,
            pending_uj=pending_uj,
            gap_uj=0,
            unknown_sequences=sum(reply.energy_uj is None for reply in settled),
            pending_receipts=len(unsettled),
            idle_watts=0,
        )

    def _active(self, variant: Variant) -> pb.VariantEnergy:
        total = pb.VariantEnergy(variant=variant.name)
        for entry in self.finals:
            if entry.variant.name != variant.name:
                continue
            for reply, tokens in zip(entry.replies, entry.tokens, strict=True):
                if reply.energy_uj is not None:
                    total.active_uj += reply.energy_uj
                    total.sequences += 1
                    total.tokens += tokens
                    total.padded_tokens += max(entry.tokens)
        return total


def _tokens(given: Given) -> int:
    """As the protocol counts them; of a text the words, since a fake has no tokenizer."""
    if isinstance(given, str):
        return len(given.split()) or 1
    return len(given) if isinstance(given, tuple) else 1


def _sum(amounts: list[int | None]) -> int | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if len(known) == len(amounts) else None
