"""What the fake server of `testing` answers: predictions, receipts, a ledger that adds up what was scripted,
and its description. Pure: no grpc, and no lock of its own."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattserve_client._fake.requests import (
    MAX_SEQUENCES,
    MAX_TOKENS,
    VOCABULARY_SIZE,
    FakeRequest,
    Given,
    tokens_of,
)
from wattserve_client._fake.script import Reply, Script
from wattserve_client.reports import Variant, VariantState
from wattserve_client.wire import to_message
from wattserve_proto.v1 import inference_pb2 as pb

SOURCE = pb.EnergySource(
    name="fake",
    method="apportioned simulation",
    quality=pb.ENERGY_QUALITY_SIMULATED,
    note="a fake server for tests: every figure is scripted, nothing was measured",
    boundary="no hardware",
)
_PART = "accelerator"  # the one counter that there is
_WORDS = "a fake server for tests: nothing runs"


@dataclass(eq=False)
class FakeReceipt:
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
        is_known = energy_uj is not None
        final_state = pb.ENERGY_STATE_SETTLED if is_known else pb.ENERGY_STATE_UNKNOWN
        figures: dict[str, Any] = {
            "state": final_state if self.is_final else pb.ENERGY_STATE_PROVISIONAL,
            "energy_uj": energy_uj,
            "idle_share_uj": 0 if is_known else None,
            "unknown_reason": "" if is_known else self.unknown_reason,
            "provisional_energy_uj": provisional_uj,
        }
        if is_known and self.is_final:
            figures["energy_low_uj"] = sum(reply.interval_uj[0] for reply in self.replies)
            figures["energy_high_uj"] = sum(reply.interval_uj[1] for reply in self.replies)
        message = pb.Receipt(
            receipt_id=self.receipt_id,
            request_id=self.request_id,
            variant=self.variant.name,
            device=self.variant.device,
            outcome=pb.OUTCOME_COMPLETED,
            source=SOURCE,
            idle_policy="busy-time",
            split_rule="scripted",
            created_unix_ns=self.created_unix_ns,
            proxy=self.variant.proxy,
            unverified=not self.variant.verified,
            parts=[pb.ReceiptPart(name=_PART, source=SOURCE, **figures)],
            **figures,
        )
        for reply, tokens in zip(self.replies, self.tokens, strict=True):
            line_uj = reply.energy_uj if self.is_final else reply.provisional_uj
            message.lines.add(
                energy_uj=line_uj if is_known else None,
                idle_share_uj=0 if is_known else None,
                tokens=tokens,
                padded_tokens=max(self.tokens),
                batch_size=len(self.tokens),
            )
        return message


class FakeLedger:
    """All receipts of one server, and in `finals` those that are final, in the order they became so."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._started_unix_ns = time.time_ns()
        self.receipts: dict[str, FakeReceipt] = {}
        self.finals: list[FakeReceipt] = []

    def open(
        self, request_id: str, variant: Variant, replies: Sequence[Reply], inputs: Sequence[Given]
    ) -> FakeReceipt:
        receipt = FakeReceipt(
            receipt_id=f"{self._instance_id}-{len(self.receipts) + 1}",
            request_id=request_id,
            variant=variant,
            replies=tuple(replies),
            tokens=tuple(min(tokens_of(given), MAX_TOKENS) for given in inputs),
            created_unix_ns=time.time_ns(),
        )
        self.receipts[receipt.receipt_id] = receipt
        return receipt

    def settle(self, receipt: FakeReceipt) -> None:
        """Make it final, once."""
        if not receipt.is_final:
            receipt.is_final = True
            self.finals.append(receipt)

    def report(self, variants: Sequence[Variant]) -> pb.EnergyReport:
        """The ledger, which holds the scripted energies and nothing else."""
        unsettled = [receipt for receipt in self.receipts.values() if not receipt.is_final]
        pending_uj = sum(reply.energy_uj or 0 for receipt in unsettled for reply in receipt.replies)
        settled = [reply for receipt in self.finals for reply in receipt.replies]
        active = [self._active(variant) for variant in variants]
        whole = pb.EnergyReport(
            source=SOURCE,
            device=variants[0].device,
            since_unix_ns=self._started_unix_ns,
            until_unix_ns=(now := time.time_ns()),
            now_unix_ns=now,
            instance_id=self._instance_id,
            measured_uj=sum(energy.active_uj for energy in active) + pending_uj,
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
        part = pb.EnergyReport(part=_PART)
        part.MergeFrom(whole)
        whole.parts.append(part)
        return whole

    def _active(self, variant: Variant) -> pb.VariantEnergy:
        total = pb.VariantEnergy(variant=variant.name)
        for receipt in self.finals:
            if receipt.variant.name != variant.name:
                continue
            for reply, tokens in zip(receipt.replies, receipt.tokens, strict=True):
                if reply.energy_uj is not None:
                    total.active_uj += reply.energy_uj
                    total.sequences += 1
                    total.tokens += tokens
                    total.padded_tokens += max(receipt.tokens)
        return total


def _sum(amounts: list[int | None]) -> int | None:
    return None if None in amounts else sum(uj for uj in amounts if uj is not None)


def fake_variant(name: str) -> Variant:
    """A variant that is ready, runs nothing, and says so."""
    return Variant(
        name=name,
        device="fake",
        dtype=name,
        native=False,
        kernels="none",
        detail="",
        parameter_bytes=0,
        warmup_seconds=0.0,
        warmup_shapes=0,
        state=VariantState.READY,
        verification=_WORDS,
        operands="none",
        weights="none",
    )


def prediction(
    request: FakeRequest, variant: str, replies: Sequence[Reply], script: Script, receipt: pb.Receipt
) -> pb.PredictResponse:
    rows, scores = zip(*(script.row(reply) for reply in replies), strict=True)
    output = np.stack(rows).astype("<f4")
    message = pb.PredictResponse(
        request_id=request.request_id,
        variant=variant,
        output=pb.Tensor(
            name="logits" if script.labels else "embedding",
            datatype="FP32",
            shape=output.shape,
            data=output.tobytes(),
        ),
        receipt=receipt,
    )
    cut_tokens = [max(0, tokens_of(given) - MAX_TOKENS) for given in request.inputs]
    message.cut_tokens.extend(cut_tokens if any(cut_tokens) else ())
    if script.labels:
        for row in scores:
            best = int(row.argmax())
            message.classifications.add(label_index=best, label=script.labels[best], scores=row.tolist())
    return message


def server_info(instance_id: str, labels: Sequence[str], variants: Sequence[Variant]) -> pb.ServerInfo:
    """The first variant is the default one."""
    return pb.ServerInfo(
        server_version="fake",
        model_name="fake",
        model_source=_WORDS,
        task="sequence-classification" if labels else "feature-extraction",
        labels=labels,
        accepts_text=True,
        random_weights=True,
        default_variant=variants[0].name,
        variants=[to_message(variant, pb.VariantInfo()) for variant in variants],
        meter=pb.MeterInfo(
            source=SOURCE,
            idle_watts=0,
            idle_origin="configured",
            boundary=SOURCE.boundary,
            device=variants[0].device,
        ),
        limits=pb.Limits(
            max_sequence_tokens=MAX_TOKENS,
            max_batch_sequences=256,
            max_batch_tokens=65536,
            max_queue_sequences=65536,
            max_request_sequences=MAX_SEQUENCES,
            vocabulary_size=VOCABULARY_SIZE,
            receipt_retention_seconds=600,
            receipt_retention_count=100_000,
            settlement_limit_seconds=10,
        ),
        versions={"python": platform.python_version()},
        hardware="none: a fake server for tests",
        instance_id=instance_id,
    )
