"""The HTTP side of the metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, start_http_server

from wattserve_server.errors import ConfigError


class Exposition:
    """Serves a registry at http://host:port/metrics, on a thread of its own."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """port: 0 picks a free one. Raises ConfigError when it cannot listen there."""
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; "
                "choose another --metrics-port"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
