"""The image's HEALTHCHECK: ends with 0 if the server in this container answers SERVING, else with 1.

It sees the container's variables, not the server's flags: a port or a certificate other than the default
must be set as WATTSERVE_PORT, WATTSERVE_TLS_CERT. Of that certificate, which it trusts as it stands, it
expects the name HEALTH_TLS_NAME (default: localhost). To a server that asks for a client's certificate it
shows HEALTH_TLS_CERT, with its key HEALTH_TLS_KEY.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 5.0


def main(environment: Mapping[str, str] = os.environ) -> int:
    try:
        with _channel(environment) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S
            )
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}")
        return 1
    except OSError as error:
        print(error)
        return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    print(status)
    return 0 if status == "SERVING" else 1


def _channel(environment: Mapping[str, str]) -> grpc.Channel:
    target = f"127.0.0.1:{environment.get('WATTSERVE_PORT') or 50051}"
    trusted = _content(environment.get("WATTSERVE_TLS_CERT"))
    if trusted is None:
        return grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)])
    credentials = grpc.ssl_channel_credentials(
        trusted, _content(environment.get("HEALTH_TLS_KEY")), _content(environment.get("HEALTH_TLS_CERT"))
    )
    name = environment.get("HEALTH_TLS_NAME") or "localhost"
    return grpc.secure_channel(target, credentials, [("grpc.ssl_target_name_override", name)])


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


if __name__ == "__main__":
    sys.exit(main())
