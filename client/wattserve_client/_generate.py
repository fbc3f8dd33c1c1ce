"""Generations on their way: prompts into messages, and a stream's messages into what they say. Pure."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, TypedDict

from wattserve_client import _requests
from wattserve_client._channel import Link
from wattserve_client._requests import Inputs, IntArray
from wattserve_client.generations import FinishReason, Generation, GenerationPiece, Scores, TokenScore
from wattserve_client.results import Prediction, Receipt, Timing, Usage
from wattserve_client.wire import enum_of, from_message
from wattserve_proto.v1 import inference_pb2 as pb

Prompt: TypeAlias = str | Sequence[int] | IntArray  # a text, or the token ids of one


class GenerateOptions(TypedDict, total=False):
    """What `generate` takes beside its prompt. Left out, the server's default."""

    variant: str
    request_id: str
    max_new_tokens: int
    temperature: float  # 0, the default: the likeliest token, always
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    max_energy_uj: int
    priority: int
    wait_for_settled_energy: bool
    timeout_s: float | None


class ScoreOptions(TypedDict, total=False):
    """What `score` takes beside its inputs."""

    variant: str
    request_id: str
    priority: int
    wait_for_settled_energy: bool
    timeout_s: float | None


CHARGED: tuple[type, ...] = (Prediction, Scores)  # what is answered by a call that may have run

# The most that each holds, whole numbers where it is one.
_NUMBERS: dict[str, float] = {"max_new_tokens": 2**32 - 1, "logprobs": 2**32 - 1, "max_energy_uj": 2**63 - 1}
_SAMPLING = {
    "temperature": sys.float_info.max, "top_k": 2**32 - 1, "top_p": sys.float_info.max,
    "repetition_penalty": sys.float_info.max, "seed": 2**63 - 1,
}  # fmt: skip


def generate_request(prompt: Prompt, options: GenerateOptions) -> pb.GenerateRequest:
    """TypeError or ValueError for what cannot be sent; what is merely wrong, the server says."""
    given: dict[str, Any] = dict(options)
    filled = _filled("generate", GenerateOptions, given, prompt)
    request = pb.GenerateRequest(**_ways(filled))
    if len(filled.text.texts) + len(filled.tokens.sequences) != 1:
        raise TypeError("the prompt must be one text, or the token ids of one")
    if filled.text.texts:
        request.text = filled.text.texts[0]
    else:
        request.tokens.CopyFrom(filled.tokens.sequences[0])
    for name, most in _NUMBERS.items():
        if given.get(name) is not None:
            setattr(request, name, _number(given[name], most, name))
    for name, most in _SAMPLING.items():
        if given.get(name) is not None:
            setattr(request.sampling, name, _number(given[name], most, name))
    stops = given.get("stop", ())
    stops = [stops] if isinstance(stops, str) else stops
    request.stop_strings.extend(_requests.text(stop, f"stop[{place}]") for place, stop in enumerate(stops))
    request.stop_token_ids.extend(
        _number(token, 2**31 - 1, "stop_token_ids") for token in given.get("stop_token_ids", ())
    )
    request.ignore_eos = _requests.flag(given.get("ignore_eos", False), "ignore_eos")
    return request


def score_request(inputs: Inputs, options: ScoreOptions) -> pb.ScoreRequest:
    """As `generate_request`."""
    filled = _filled("score", ScoreOptions, dict(options), inputs)
    request = pb.ScoreRequest(**_ways(filled))
    if filled.text.texts:
        request.text.CopyFrom(filled.text)
    else:
        request.tokens.CopyFrom(filled.tokens)
    return request


def _filled(method: str, options: type, given: dict[str, Any], inputs: Inputs) -> pb.PredictRequest:
    """As `predict` would ask it, with texts or token ids. options: what there is to be `given`."""
    unknown = given.keys() - options.__annotations__.keys()
    if unknown:
        raise TypeError(f"{method} takes no {', '.join(sorted(unknown))}")
    bare = _requests.bare_request(
        given.get("variant", ""),
        given.get("wait_for_settled_energy", False),
        given.get("priority", 0),
        given.get("request_id", ""),
    )
    filled = _requests.with_inputs(bare, inputs)
    if filled.WhichOneof("input") == "tensors":
        raise TypeError("a language model takes texts or token ids, no pixels and no named tensors")
    return filled


def _ways(filled: pb.PredictRequest) -> dict[str, Any]:
    """How it is to be treated, by the fields that all requests have."""
    return {
        "request_id": filled.request_id,
        "variant": filled.variant,
        "priority": filled.priority,
        "wait_for_settled_energy": filled.wait_for_settled_energy,
    }


def _number(value: object, most: float, name: str) -> Any:
    is_whole = isinstance(most, int)
    if isinstance(value, bool) or not isinstance(value, int if is_whole else (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a {'whole number' if is_whole else 'number'}")
    if not 0 <= value <= most:  # which NaN is not, either
        wanted = f"from 0 to {most}" if is_whole else "a finite number, 0 or more"
        raise ValueError(f"{name} is {value}; it must be {wanted}")
    return value


class GenerationBook:
    """What the messages of one stream have said so far."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._pieces: list[GenerationPiece] = []
        self._generation: Generation | None = None

    @property
    def has_begun(self) -> bool:
        return bool(self._pieces) or self._generation is not None

    @property
    def generation(self) -> Generation:
        if self._generation is None:
            raise RuntimeError("the generation has not come to its end: read all of its pieces first")
        return self._generation

    def take(self, message: pb.GenerateResponse) -> GenerationPiece | None:
        """Its piece; None for the end."""
        if message.WhichOneof("result") == "piece":
            piece = self._link.read(GenerationPiece, message.piece)
            self._pieces.append(piece)
            return piece
        self._generation = self._whole(message)
        return None

    def check_ended(self) -> None:
        """Raises ServerError."""
        if self._generation is None:
            raise self._link.nonsense("the stream of a generation ended without its end")

    def _whole(self, message: pb.GenerateResponse) -> Generation:
        end, scores = message.end, list[TokenScore]()
        for piece in self._pieces:
            scores += piece.scores
        return Generation(
            request_id=message.request_id,
            variant=message.variant,
            text="".join(piece.text for piece in self._pieces),
            token_ids=tuple(token for piece in self._pieces for token in piece.token_ids),
            scores=tuple(scores),
            finish_reason=enum_of(FinishReason, end, "finish_reason"),
            stop_string=end.stop_string,
            usage=from_message(Usage, end.usage),
            receipt=self._link.read(Receipt, end.receipt),
            timing=from_message(Timing, end.timing),
            seed=end.seed if end.HasField("seed") else None,
        )


class GenerationStream(Iterable[GenerationPiece]):
    """The pieces of a generation as they come; `result` has all of it once they are read. Leaving it early,
    by `close` or the end of a `with` block, ends the generation, which is charged for what has run."""

    def __init__(self, pieces: Generator[GenerationPiece, None, None], book: GenerationBook) -> None:
        self._pieces = pieces
        self._book = book

    @property
    def result(self) -> Generation:
        """RuntimeError while there are pieces left to read."""
        return self._book.generation

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GenerationPiece:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._pieces.close()


class AsyncGenerationStream:
    """As `GenerationStream`, for asyncio."""

    def __init__(self, pieces: AsyncGenerator[GenerationPiece, None], book: GenerationBook) -> None:
        self._pieces = pieces
        self._book = book

    @property
    def result(self) -> Generation:
        """RuntimeError while there are pieces left to read."""
        return self._book.generation

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationPiece:
        return await anext(self._pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, way: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._pieces.aclose()
