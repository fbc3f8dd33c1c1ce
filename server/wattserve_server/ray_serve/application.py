"""The application that Ray Serve runs: `serve run` and its configuration file name `app` here.

See docs/how-to/ray.md and deploy/ray/serve.yaml.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from wattserve_common.libraries import LIBRARIES
from wattserve_server.config import ServerConfig, flag, read_config
from wattserve_server.errors import ConfigError

if TYPE_CHECKING:
    from ray.serve import Application

RAY = "2.60"  # the ingress wraps handlers that Ray makes, so another version is another ingress

DEPLOYMENT = "Wattserve"

# Of the server's settings those that are of what listens, which is Ray's.
LISTENING = frozenset(
    {"host", "port", "http_port", "insecure", "tls_cert", "tls_key", "tls_client_ca", "keys_file"}
    | {"trust_tenant_header", "open_admin", "metrics_need_key", "account_name", "max_connection_age_seconds"}
)

ONGOING = 64  # calls at a replica, at which another is to come: of a full batch, and a full one that waits
MOST_ONGOING = 4096  # beyond which Ray holds back what the server would refuse with a reason
ENDING_S = 60.0  # a drain, settling and the last of the account book


def app(settings: Mapping[str, Any]) -> Application:
    """settings: those of `wattserve serve`, by their names with underscores. Raises ConfigError."""
    config = config_of(settings)
    ray, serve = _ray()
    from wattserve_server.ray_serve.directory import NAME, Directory
    from wattserve_server.ray_serve.replica import Replica

    directory = (
        ray.remote(Directory)
        .options(name=NAME, namespace="serve", get_if_exists=True, lifetime="detached", num_cpus=0)
        .remote()
    )
    # What the command `wattserve` sets for itself.
    libraries = {name: os.environ.get(name, value) for name, value in LIBRARIES.items()}
    resources: dict[str, Any] = {"num_cpus": config.threads or 1, "runtime_env": {"env_vars": libraries}}
    if config.device != "cpu":
        resources["num_gpus"] = 1
    deployment = serve.deployment(
        Replica,
        name=DEPLOYMENT,
        max_ongoing_requests=MOST_ONGOING,
        autoscaling_config={"min_replicas": 1, "max_replicas": 1, "target_ongoing_requests": ONGOING},
        ray_actor_options=resources,
        graceful_shutdown_timeout_s=ENDING_S,
    )
    return deployment.bind(config, directory)


def config_of(settings: Mapping[str, Any]) -> ServerConfig:
    """Raises ConfigError for a setting that there is not, or is not a replica's, or cannot be."""
    known = {item.name for item in fields(ServerConfig)}
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"{name!r} is no setting of the server; docs/reference/configuration.md has all"
            )
        if name in LISTENING:
            raise ConfigError(f"{name} is of a server that listens itself; under Ray Serve its ingress does")
    config = read_config(dict(settings), {})
    if config.account_book and "://" not in config.account_book:
        raise ConfigError(
            f"account_book {config.account_book}: a file has one writer, and replicas are several; give "
            "postgresql://..."
        )
    if config.device not in ("cpu", "cuda"):
        raise ConfigError(
            f"{flag('device')} {config.device}: a replica has the one device that Ray gives it; say cuda or "
            "cpu"
        )
    return config


def _ray() -> tuple[Any, Any]:
    try:
        import ray
        from ray import serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"Ray Serve needs {error.name}: pip install 'wattserve[ray]'") from error
    if not ray.__version__.startswith(f"{RAY}."):
        raise ConfigError(
            f"Ray {ray.__version__} is installed, and this was made for Ray {RAY}: pip install "
            "'wattserve[ray]'"
        )
    return ray, serve
