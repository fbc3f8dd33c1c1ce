"""The client of Wattserve: predictions that say what they cost in joules.

    from wattserve_client import Client

    with Client("127.0.0.1:50051") as client:
        answer = client.predict("a delightful film", variant="bf16", wait_for_settled_energy=True)
        print(answer.label, answer.receipt)

`AsyncClient` has the same methods for asyncio.
"""

from wattserve_client._generate import AsyncGenerationStream, GenerationStream
from wattserve_client._requests import Inputs
from wattserve_client._servers import Tls
from wattserve_client.aio import AsyncClient
from wattserve_client.client import Client
from wattserve_client.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    NotFound,
    NotPossible,
    Overloaded,
    ServerError,
    Unavailable,
    WattserveError,
)
from wattserve_client.generations import (
    FinishReason,
    Generation,
    GenerationPiece,
    Scores,
    SequenceScore,
    TokenLogprob,
    TokenScore,
)
from wattserve_client.reports import (
    CrossCheck,
    EnergyReport,
    Gap,
    Limits,
    Meter,
    SensorProbe,
    ServerInfo,
    Variant,
    VariantEnergy,
    VariantState,
)
from wattserve_client.results import (
    Answer,
    Classification,
    EnergyQuality,
    EnergySource,
    EnergyState,
    FoundReceipts,
    GenerationEnergy,
    LineRole,
    Outcome,
    Prediction,
    Receipt,
    ReceiptLine,
    ReceiptPart,
    Timing,
    Usage,
)
from wattserve_client.usage import AccountBreak, CounterUsage, UsageReport, UsageRow

__all__ = [
    "AccountBreak",
    "Answer",
    "AsyncClient",
    "AsyncGenerationStream",
    "Cancelled",
    "Classification",
    "Client",
    "CounterUsage",
    "CrossCheck",
    "DeadlineExceeded",
    "EnergyQuality",
    "EnergyReport",
    "EnergySource",
    "EnergyState",
    "FinishReason",
    "FoundReceipts",
    "Gap",
    "Generation",
    "GenerationEnergy",
    "GenerationPiece",
    "GenerationStream",
    "Inputs",
    "InvalidRequest",
    "Limits",
    "LineRole",
    "Meter",
    "NotAllowed",
    "NotFound",
    "NotPossible",
    "Outcome",
    "Overloaded",
    "Prediction",
    "Receipt",
    "ReceiptLine",
    "ReceiptPart",
    "Scores",
    "SensorProbe",
    "SequenceScore",
    "ServerError",
    "ServerInfo",
    "Timing",
    "Tls",
    "TokenLogprob",
    "TokenScore",
    "Unavailable",
    "Usage",
    "UsageReport",
    "UsageRow",
    "Variant",
    "VariantEnergy",
    "VariantState",
    "WattserveError",
]
