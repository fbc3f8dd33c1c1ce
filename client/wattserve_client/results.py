"""What the server says, as plain immutable values: numpy arrays, integers with units, and enums.

What concerns one request is here, what concerns the whole server is in `reports`. Energies are whole
microjoules (`*_uj`) as on the wire, with `*_joules` beside them. An energy that is not known is None, and
`unknown_reason` says why; it is never 0. Knows nothing of grpc or protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from wattserve_client.errors import WattserveError
from wattserve_common.words import APPORTIONED, origin, share_of


class EnergyState(StrEnum):
    """How final a receipt's figure is."""

    UNSPECIFIED = "unspecified"  # the server did not say, or in a word newer than this client
    PROVISIONAL = "provisional"  # predicted by the variant's cost law; the meter has not covered it yet
    SETTLED = "settled"  # shared out of metered intervals; final
    UNKNOWN = "unknown"  # final, and there is no figure


class EnergyQuality(StrEnum):
    """What the sum is of which a request's figure is a share: the share itself is never measured."""

    UNSPECIFIED = "unspecified"
    MEASURED = "measured"  # a hardware sensor
    ESTIMATED = "estimated"  # from activity and configured watts; no sensor
    SIMULATED = "simulated"  # a declared power law
    NONE = "none"  # no meter


class Outcome(StrEnum):
    """How a request ended on the server."""

    UNSPECIFIED = "unspecified"
    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the caller left; what had run by then was charged
    FAILED = "failed"


class LineRole(StrEnum):
    """What a line of a generation's receipt stands for."""

    UNSPECIFIED = "unspecified"  # it is a sequence of a request that generates nothing
    PROMPT = "prompt"  # the steps that read the prompt, and choose the first token
    OUTPUT = "output"  # those that choose the others
    RECOMPUTED = "recomputed"  # those that read again what the cache had lost; in no figure but an overhead


def joules(uj: float | None) -> float | None:
    """Microjoules in joules; None stays None."""
    return None if uj is None else uj / 1e6


class joules_of(property):
    """The property in joules beside one in microjoules: `energy_joules = joules_of("energy_uj")`."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda owner: joules(getattr(owner, name)), doc=f"`{name}`, in joules.")

    @overload
    def __get__(self, owner: None, kind: type, /) -> Self: ...
    @overload
    def __get__(self, owner: Any, kind: type | None = None, /) -> float | None: ...
    def __get__(self, owner: Any, kind: type | None = None, /) -> Any:
        return super().__get__(owner, kind)


def format_joules(uj: int) -> str:
    """Three significant digits, never an exponent: "0.0123", "12.3", "0"."""
    whole_digits = len(str(uj)) - 6  # digits before the decimal point, if positive
    text = f"{uj / 1e6:.{min(6, max(0, 3 - whole_digits))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class EnergySource:
    """Where figures come from: what the sum is (`quality`), and how it became a request's (`method`)."""

    name: str  # which meter, e.g. "nvml:GPU-5f0c..." or "estimate"
    method: str  # e.g. "apportioned counter"
    quality: EnergyQuality
    note: str  # what a reader must know, e.g. the configured watts
    boundary: str = ""  # which hardware the figures cover; "" from an older server

    def __str__(self) -> str:
        match self.quality:
            case EnergyQuality.NONE:
                return "no meter"
            case EnergyQuality.UNSPECIFIED:
                return origin("of unspecified quality", self.name)
            case quality:
                return origin(quality, self.name)


@dataclass(frozen=True, slots=True)
class ReceiptLine:
    """One sequence of a request."""

    energy_uj: int | None  # active energy; None when unknown or not run
    idle_share_uj: int | None
    tokens: int
    padded_tokens: int  # the length it was computed at, padding included
    batch_size: int  # sequences in its batch; 0: it never ran
    compute_ns: int  # its batch's window; of a generation, the sum of its steps' windows
    role: LineRole = LineRole.UNSPECIFIED

    energy_joules = joules_of("energy_uj")
    idle_share_joules = joules_of("idle_share_uj")


@dataclass(frozen=True, slots=True)
class ReceiptPart:
    """What one part of the machine adds to a receipt, which is the sum of its parts."""

    name: str  # "accelerator" or "host"
    source: EnergySource
    state: EnergyState
    energy_uj: int | None  # active energy; None when unknown
    energy_low_uj: int | None
    energy_high_uj: int | None
    idle_share_uj: int | None
    provisional_energy_uj: int | None
    unknown_reason: str

    energy_joules = joules_of("energy_uj")
    idle_share_joules = joules_of("idle_share_uj")


@dataclass(frozen=True, slots=True)
class GenerationEnergy:
    """What a generation was spent on. Prompt and output add up to the receipt's `energy_uj`."""

    prompt_energy_uj: int | None  # of reading the prompt, and of choosing the first token; None when unknown
    output_energy_uj: int | None  # of choosing the others
    energy_per_output_token_uj: float | None  # the receipt's energy by output_tokens; None for no token
    energy_per_total_token_uj: float | None  # the same by prompt_tokens and output_tokens
    overhead_energy_uj: int | None  # of reading again what a preemption had lost: the server's own expense
    prompt_tokens: int
    output_tokens: int
    recomputed_tokens: int

    prompt_energy_joules = joules_of("prompt_energy_uj")
    output_energy_joules = joules_of("output_energy_uj")
    energy_per_output_token_joules = joules_of("energy_per_output_token_uj")
    energy_per_total_token_joules = joules_of("energy_per_total_token_uj")
    overhead_energy_joules = joules_of("overhead_energy_uj")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one request cost. `str()` gives the figure together with how far it may be trusted."""

    receipt_id: str
    request_id: str
    variant: str
    device: str
    outcome: Outcome
    state: EnergyState
    source: EnergySource
    energy_uj: int | None  # active energy: above the device's idle draw
    energy_low_uj: int | None  # 95 % interval of the apportioning, without
    energy_high_uj: int | None  # the sensor's own calibration error
    idle_share_uj: int | None  # of the device's idle draw, under idle_policy
    idle_policy: str
    split_rule: str  # how a batch's energy was split among its sequences
    unknown_reason: str
    lines: tuple[ReceiptLine, ...]  # one per sequence, in the request's order
    provisional_energy_uj: int | None  # what the first answer said
    created_unix_ns: int
    warnings: tuple[str, ...] = ()  # what else may be in the figure, e.g. another process on the device
    proxy: str = ""  # empty, or: the variant only stands in for a precision; what really ran
    unverified: bool = False  # nobody has checked that the variant ran at the precision of its name
    parts: tuple[ReceiptPart, ...] = ()  # whose sums the energies are; none from an older server
    generation: GenerationEnergy | None = None  # None where nothing was generated

    @property
    def settled(self) -> bool:
        return self.state is EnergyState.SETTLED

    energy_joules = joules_of("energy_uj")
    energy_low_joules = joules_of("energy_low_uj")
    energy_high_joules = joules_of("energy_high_uj")
    idle_share_joules = joules_of("idle_share_uj")
    provisional_energy_joules = joules_of("provisional_energy_uj")

    @property
    def origin(self) -> str:
        """What kind of figure it is, and of which sum: `apportioned from joules measured by nvml:GPU-5`."""
        is_share = self.source.method.startswith(APPORTIONED)
        if self.energy_uj is None or not is_share or self.source.quality is EnergyQuality.NONE:
            return str(self.source)
        if self.state is EnergyState.PROVISIONAL:
            return f"predicted from joules {self.source}"
        return share_of(self.source.method, str(self.source))

    def __str__(self) -> str:
        if self.energy_uj is None:
            text = f"energy unknown: {self.unknown_reason or 'the server gave no reason'}"
        else:
            text = f"{format_joules(self.energy_uj)} J"
            if self.idle_share_uj is not None:
                text += f" + {format_joules(self.idle_share_uj)} J idle"
        remarks = [f"{self.state}, {self.origin}"]
        if self.energy_low_uj is not None and self.energy_high_uj is not None:
            remarks.append(f"95 % {format_joules(self.energy_low_uj)}-{format_joules(self.energy_high_uj)} J")
        if self.outcome in (Outcome.CANCELLED, Outcome.FAILED):
            remarks.append(f"request {self.outcome}")
        if self.proxy:
            remarks.append(f"PROXY: {self.proxy}")
        if self.unverified:
            remarks.append("unverified precision")
        remarks += [f"warning: {warning}" for warning in self.warnings]
        return f"{text} ({'; '.join(remarks)})"


@dataclass(frozen=True, slots=True)
class FoundReceipts:
    """The receipts of one request id."""

    receipts: tuple[Receipt, ...]  # newest first; of each server the newest 100
    older_left_out: bool  # there are more


@dataclass(frozen=True, slots=True)
class Timing:
    """Host times of one request, in nanoseconds on the server's monotonic clock."""

    tokenize_ns: int  # 0 when the caller sent tokens
    queue_ns: int
    compute_ns: int
    total_ns: int
    first_token_ns: int | None = None  # until a generation's first token was there; None for all else


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as a bill counts them: special ones included, padding not."""

    prompt_tokens: int
    output_tokens: int  # that were generated, an end token among them
    total_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Classification:
    """What a classifier says of one sequence."""

    label: str
    label_index: int
    scores: npt.NDArray[np.float32]  # [labels], softmax, in the order of ServerInfo.labels


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The answer to one request, which holds one or several sequences."""

    request_id: str
    variant: str
    output: npt.NDArray[Any]  # [sequences, labels] or [sequences, width]; bfloat16 arrives as float32
    output_name: str  # "logits" or "embedding"
    classifications: tuple[Classification, ...]  # one per sequence; empty for embeddings
    receipt: Receipt
    timing: Timing
    cut_tokens: tuple[int, ...] = ()  # of each text, what `truncate` cut off; empty where nothing was
    usage: Usage | None = None  # None from an older server

    @property
    def label(self) -> str:
        """The label of the one sequence; ValueError when there is not exactly one label."""
        if len(self.classifications) != 1:
            raise ValueError(
                f"this prediction has {len(self.classifications)} labels, so `label` says nothing: "
                "use `labels`, or `output` for a model without labels"
            )
        return self.classifications[0].label

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per sequence; empty for a model without labels."""
        return tuple(classification.label for classification in self.classifications)

    @property
    def energy_joules(self) -> float | None:
        """Active energy of the whole request; None when it is not known (`receipt.unknown_reason`)."""
        return self.receipt.energy_joules


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What became of one of the inputs of `predict_many`: a prediction or an error, never both."""

    index: int  # the input's place in the iterable, from 0
    value: Prediction | WattserveError

    @property
    def prediction(self) -> Prediction | None:
        return self.value if isinstance(self.value, Prediction) else None

    @property
    def error(self) -> WattserveError | None:
        return self.value if isinstance(self.value, WattserveError) else None

    def result(self) -> Prediction:
        """The prediction; raises the error when there is one."""
        if isinstance(self.value, WattserveError):
            raise self.value
        return self.value
