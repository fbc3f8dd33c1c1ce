"""What both clients share around a channel: options, retries, deadlines, and what errors become.

Retries are gRPC's own, by a service config: it heeds the server's push-back and varies its pauses. A read
may be repeated when the server was out of reach. A prediction is repeated only where the server promises
that nothing of it ran: by gRPC on RESOURCE_EXHAUSTED, and by `Tries` when the server says that it is
starting or stopping, or where no server took it. One whose fate is not known is never repeated, because it
would be charged twice.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from wattserve_client._servers import Tls, addresses, explained, list_of, lost
from wattserve_client.errors import (
    Cancelled,
    DeadlineExceeded,
    ServerError,
    Unavailable,
    WattserveError,
    details_in,
    error_for,
)
from wattserve_client.keys import IN_CLEAR, ApiKey, Metadata
from wattserve_client.wire import from_message
from wattserve_common.arguments import host_and_port
from wattserve_proto.limits import MAX_MESSAGE_BYTES, message_sizes

DEFAULT_TIMEOUT_S = 30.0
DEFAULT_IN_FLIGHT = 64
_LONGEST_S = 1e9  # gRPC takes what ends after the year 2262 for a deadline that has passed

_SERVICE = "wattserve.v1.Inference"
_CHARGED = ("Predict", "Generate", "Score")
_READS = ("GetReceipt", "FindReceipts", "GetServerInfo", "GetEnergyReport", "GetUsage")

R = TypeVar("R")


_MAX_TRIES = 5
_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 2.0
_NOTHING_RAN = "STARTING_OR_STOPPING"  # ErrorInfo.reason


# gRPC's first words of an UNAVAILABLE call that had no server to go to, or none that is ready (by its health
# check). A connection lost under a call has other words.
_NO_SERVER = (
    "connections to all backends failing",
    "failed to connect to all addresses",
    "errors resolving ",
    "DNS resolution failed",
)


def _retry_policy(code: str, first_pause_s: float) -> dict[str, Any]:
    return {
        "maxAttempts": _MAX_TRIES,
        "initialBackoff": f"{first_pause_s}s",
        "maxBackoff": f"{_MAX_PAUSE_S}s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": [code],
    }


# Of grpc.health.v1, asked by hand: an empty request is for the whole server, and the reply says SERVING.
HEALTH_CHECK, SERVING = "/grpc.health.v1.Health/Check", b"\x08\x01"

_RETRIES = [
    {
        "name": [{"service": _SERVICE, "method": method} for method in _READS],
        "retryPolicy": _retry_policy("UNAVAILABLE", _FIRST_PAUSE_S),
    },
    {
        "name": [{"service": _SERVICE, "method": method} for method in _CHARGED],
        "retryPolicy": _retry_policy("RESOURCE_EXHAUSTED", 0.05),
    },
]
_OPTIONS: list[tuple[str, int | str]] = [
    *message_sizes(),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise equal clients of a process share one connection
    # A restarted server is found again within seconds; gRPC's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # What a call has sent is kept for its retry up to this size; beyond it there is no retry.
    ("grpc.per_rpc_retry_buffer_size", 2 * MAX_MESSAGE_BYTES),
    # A server that vanished is noticed while a call waits for it, also when that call is silent for long
    # (0: gRPC would slow down after two pings without data). The server must allow a ping every 30 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class Link:
    """One client's link to its servers: addresses, options, deadlines, errors."""

    def __init__(
        self,
        target: str | Sequence[str],
        timeout_s: float,
        retry: bool,
        tls: bool | Tls = False,
        key: ApiKey | None = None,
    ) -> None:
        """Reads the files that `tls` names; looks up the names of several addresses. ValueError where the key
        would be sent in clear."""
        if not isinstance(retry, bool):
            raise TypeError(f"retry is {retry!r}; it must be True or False")
        if not isinstance(tls, bool | Tls):
            raise TypeError(f"tls is {tls!r}; it must be True, False or a Tls")
        self.addresses = addresses(target)
        self.target = ", ".join(self.addresses)
        self.timeout_s = _seconds(timeout_s)
        self.retry = retry
        self._tls = (Tls() if tls else None) if isinstance(tls, bool) else tls
        self._key = key or ApiKey("")
        self._key.check_private(self.addresses, self._tls is not None)
        self._credentials = None if self._tls is None else grpc.ssl_channel_credentials(*self._tls.read())
        self.options = [*_OPTIONS, *([] if self._tls else IN_CLEAR), *self._own_options()]
        # One address is gRPC's to understand and to look up, again and again.
        self._grpc_target = list_of(self.addresses) if self.has_several else self.target

    def open_blocking(self) -> grpc.Channel:
        """A channel for ordinary code, which connects with its first call."""
        if self._credentials is None:
            return grpc.insecure_channel(self._grpc_target, self.options)
        return grpc.secure_channel(self._grpc_target, self._credentials, self.options)

    def open_async(self) -> grpc.aio.Channel:
        """A channel of the event loop that is running now."""
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._grpc_target, self.options)
        return grpc.aio.secure_channel(self._grpc_target, self._credentials, self.options)

    @property
    def metadata(self) -> Metadata:
        """What every call sends along."""
        return self._key.metadata

    @property
    def has_several(self) -> bool:
        """Whether the calls are spread over several servers."""
        return len(self.addresses) > 1

    def _own_options(self) -> list[tuple[str, int | str]]:
        options: list[tuple[str, int | str]] = []
        config: dict[str, Any] = {"methodConfig": _RETRIES} if self.retry else {}
        if self.has_several:
            config["loadBalancingConfig"] = [{"round_robin": {}}]
            # A server that is starting or stopping says so, and is passed over.
            config["healthCheckConfig"] = {"serviceName": _SERVICE}
        if config:
            options.append(("grpc.service_config", json.dumps(config)))
        if self._tls is not None:
            name = self._tls.server_name
            if self.has_several and not name:  # they are numeric by now, and one channel expects one name
                name, *others = dict.fromkeys(host_and_port(address)[0] for address in self.addresses)
                if others:
                    raise ValueError(
                        "several hosts with TLS: the certificates of all must show one name, and "
                        "Tls.server_name must say which; or make a client for each host"
                    )
            if name:
                options.append(("grpc.ssl_target_name_override", name))
        return options

    def check_one_server(self) -> None:
        """ValueError when it would be left to chance which of several servers answers."""
        if self.has_several:
            raise ValueError(
                f"this concerns one server, and the client has several ({self.target}): "
                "ask each of client.members"
            )

    def seconds(self, timeout_s: float | None) -> float:
        """A call's own deadline in seconds, or the client's."""
        return self.timeout_s if timeout_s is None else _seconds(timeout_s)

    def failure(
        self, error: grpc.RpcError, within_s: float | None = None, *, may_have_run: bool = False
    ) -> WattserveError:
        """The error to raise for a grpc error, which is its cause. within_s: what was asked for.
        may_have_run: the call asked for a prediction."""
        code, message, details = (
            error.code().name,
            error.details() or "",
            details_in(error.trailing_metadata()),
        )
        never_sent = (
            code == "UNAVAILABLE" and not error.trailing_metadata() and message.startswith(_NO_SERVER)
        )
        if not details.reason:
            if code == "UNAVAILABLE":
                hinted = explained(message, self._tls)
                if hinted == message and never_sent:
                    so = ", so nothing ran" if may_have_run else ""
                    # gRPC nests the cause at the end: "Connection refused"
                    hinted = f"no server took the call{so} ({message.rpartition(': ')[2].rstrip(']')})"
                message = hinted if hinted != message else lost(message, may_have_run)
            elif code == "DEADLINE_EXCEEDED" and within_s is not None:
                charged = "; it may have run, and is then charged" if may_have_run else ""
                message = f"no answer within {within_s:.3g} s (timeout_s){charged}"
        failure = error_for(code, message, self.target, details)
        if isinstance(failure, Unavailable):
            failure.never_sent = never_sent
        failure.__cause__ = error
        return failure

    def why_not_ready(self, answer: bytes | grpc.RpcError, within_s: float) -> str:
        """Of a health check's reply, or its failure; empty when the server takes requests. Raises what is
        neither: a server that cannot be asked."""
        if isinstance(answer, bytes):
            return "" if answer == SERVING else "it is starting or shutting down"
        failure = self.failure(answer, within_s)
        if not isinstance(failure, Unavailable | DeadlineExceeded):
            raise failure
        return failure.message

    def closed(self) -> Cancelled:
        """The error to raise from a call that was open when its client was closed."""
        return Cancelled("the client was closed", "CANCELLED", self.target)

    def read(self, kind: type[R], message: Message) -> R:
        """The reply as a `kind`; ServerError when it makes no sense."""
        try:
            return from_message(kind, message)
        except ValueError as error:
            raise self.nonsense(str(error)) from error

    def nonsense(self, what: str) -> ServerError:
        """The error to raise when the server breaks the protocol."""
        return ServerError(f"the server's answer makes no sense: {what}", "INTERNAL", self.target)


class Tries:
    """The tries of one prediction that servers may refuse, or not take, while starting or stopping."""

    def __init__(self, link: Link, timeout_s: float | None) -> None:
        self._may_repeat = link.retry
        self.asked_s = link.seconds(timeout_s)  # for all of them
        self._deadline_s = time.monotonic() + self.asked_s
        self._refused = 0

    @property
    def left_s(self) -> float:
        """Until the call's deadline, for the next try."""
        return max(0.001, self._deadline_s - time.monotonic())

    def pause_s(self, failure: Unavailable) -> float | None:
        """How long to wait before the next try; None when there must be none, or no time for one."""
        self._refused += 1
        nothing_ran = failure.never_sent or failure.reason == _NOTHING_RAN
        if not self._may_repeat or not nothing_ran or self._refused >= _MAX_TRIES:
            return None
        longest_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** (self._refused - 1))
        pause_s = longest_s * random.uniform(0.5, 1)  # else those refused together would come back together
        return pause_s if pause_s < self.left_s else None


def _seconds(timeout_s: float) -> float:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s is {timeout_s!r}; it must be a number of seconds")
    if not 0 < timeout_s <= sys.float_info.max:
        raise ValueError(f"timeout_s is {timeout_s!r}; it must be a positive, finite number of seconds")
    return min(float(timeout_s), _LONGEST_S)
