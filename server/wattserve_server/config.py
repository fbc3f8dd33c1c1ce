"""The server's settings: one frozen dataclass, checked when made.

Each comes from, in this order: a flag, an environment variable `WATTSERVE_NAME`, the TOML file
given with `--config`, its default. `cli` reads them once.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from wattserve_common.arguments import float_of, int_of, is_address, is_loopback, meant
from wattserve_server.energy.attribution import BUSY_TIME, IDLE_POLICIES
from wattserve_server.energy.costlaw import SPLIT_RULES
from wattserve_server.errors import ConfigError

T = TypeVar("T")

ENVIRONMENT_PREFIX = "WATTSERVE_"

# Read by the demo model, the client's command and its library, and `wattserve usage`.
OTHER_VARIABLES = {
    *("WATTSERVE_CACHE", "WATTSERVE_TARGET", "WATTSERVE_API_KEY"),
    *("WATTSERVE_PRICE", "WATTSERVE_CARBON", "WATTSERVE_PUE", "WATTSERVE_EMBODIED"),
}


AUTO_BOOK = "auto"  # an account book for each port, in the user's state directory

OFF = -1  # of a port: nothing listens

_NUMERIC = re.compile(r".*:.*|[\d.]*\.[\d.]*")  # a host that can only be meant as an address: no name is so

C_INT = 2**31 - 1  # what gRPC takes at the most

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def _setting(
    default: Any,
    text: str,
    metavar: str = "",
    least: int = 0,
    most: float = C_INT,
    bare: str | None = None,
) -> Any:
    """least, most: of a number, which is finite. bare: what a flag without a value stands for."""
    said = {"help": text, "metavar": metavar, "least": least, "most": most, "bare": bare}
    return field(default=default, metadata=said)


@dataclass(frozen=True)
class ServerConfig:
    """Raises ConfigError, naming the flag, for a value that cannot be."""

    model: str = _setting(
        "demo",
        "a name on the Hugging Face hub, a folder, demo, demo-llm, or random:distilbert-base",
        "ID_OR_PATH",
    )
    model_name: str = _setting("", "the name it is served under (default: the last part of --model)", "NAME")
    task: str = _setting(
        "",
        "sequence-classification, feature-extraction, image-classification or text-generation "
        "(default: what the model's config.json says it is made for)",
        "TASK",
    )
    device: str = _setting(
        "auto", "auto, cpu, cuda or cuda:N; several that share all requests as cuda:0,cuda:1", "DEVICE"
    )
    variants: str = _setting(
        "",
        "precisions to load, e.g. fp32,bf16,int8; int8@cpu for another device than --device "
        "(default: all that the device runs natively; `wattserve variants` lists them)",
        "NAMES",
    )
    calibration: str = _setting(
        "", "for int8-static: a tokenised dataset of 512 rows or more, not the one to be evaluated", "DIR"
    )
    lazy_variants: bool = _setting(False, "load a variant when a request first asks for it")
    no_verify: bool = _setting(
        False, "serve variants without having the profiler check them; their receipts say unverified"
    )
    max_model_memory: str = _setting(
        "",
        "for the weights of all variants of a device, e.g. 2GB; at least one byte (default: no limit)",
        "BYTES",
    )
    default_variant: str = _setting("", "the one for requests that name none (default: the first)", "NAME")
    host: str = _setting("127.0.0.1", "address to listen on", "HOST")
    insecure: bool = _setting(False, "allow a --host that other machines reach without TLS")
    tls_cert: str = _setting("", "PEM file with the server's certificate and its chain: turns TLS on", "FILE")
    tls_key: str = _setting("", "PEM file with its private key, without a passphrase", "FILE")
    tls_client_ca: str = _setting(
        "", "PEM file: only clients that show a certificate signed by it are served (mutual TLS)", "FILE"
    )
    keys_file: str = _setting(
        "", "API keys, as `wattserve keys` writes them: whoever shows none of them is refused", "FILE"
    )
    trust_tenant_header: bool = _setting(
        False, "a proxy's key may name the tenant that it calls for, in x-wattserve-tenant"
    )
    open_admin: bool = _setting(
        False, "without keys: let other machines load and unload variants and watch all receipts"
    )
    port: int = _setting(50051, "gRPC port; 0 picks a free one", "PORT")
    http_port: int = _setting(
        OFF,
        "port at --host for OpenAI's clients: HTTP, with --tls-cert HTTPS; 0 picks a free one (default, or "
        "-1: none); needs wattserve[openai]",
        "PORT",
        least=OFF,
    )
    metrics_port: int = _setting(
        9464, "HTTP port of the status page and /metrics; 0 picks a free one", "PORT"
    )
    metrics_host: str = _setting(
        "", "address for them, plain HTTP (default: --host; with TLS 127.0.0.1)", "HOST"
    )
    metrics_need_key: bool = _setting(
        False, "show them to who sends a key that may read-all, as authorization: Bearer; needs --keys-file"
    )
    dcgm_metrics: bool = _setting(
        False,
        "tell /metrics a GPU's energy and power by the names of NVIDIA's dcgm-exporter too, for AIPerf "
        "--gpu-telemetry; needs a meter that is nvml",
    )
    meter: str = _setting(
        "auto",
        "where joules come from: nvml (a GPU's counter), rapl (a CPU's), estimate (from CPU time), "
        "simulated, replay, none, a sum such as nvml+rapl, or auto: the best that is there",
        "METER",
    )
    allow_mig: bool = _setting(
        False, "meter a GPU that is cut into MIG slices by its whole board, as an estimate"
    )
    sensor_gain: float = _setting(
        1.0, "for --meter nvml or rapl: the true joules for each that the sensor counts", "X"
    )
    sensor_gain_error: float = _setting(
        0.0, "how far that may be off, relative to it: 0.05 for 5 %; told beside every figure", "X"
    )
    estimate_watts_per_core: float = _setting(7.5, "for --meter estimate: watts of one busy core", "WATTS")
    estimate_idle_watts: float = _setting(5.0, "for --meter estimate: watts drawn when idle", "WATTS")
    simulated_idle_watts: float = _setting(40.0, "for --meter simulated: watts drawn when idle", "WATTS")
    simulated_busy_watts: float = _setting(110.0, "for --meter simulated: watts while a batch runs", "WATTS")
    powercap_root: str = _setting(
        "/sys/class/powercap", "for --meter rapl: where Linux's powercap tree is mounted", "DIR"
    )
    replay_file: str = _setting("", "for --meter replay: what `wattserve meter record` wrote", "FILE")
    split_rule: str = _setting(
        "shapley",
        "how a batch's energy is split among its sequences: shapley, stand-alone or tokens",
        "RULE",
    )
    idle_policy: str = _setting(
        BUSY_TIME,
        "how much of the device's idle draw receipts show as theirs: busy-time (that of the time in which "
        "they ran), by-active (that of each interval of the meter, by what is charged in it), by-time "
        "(likewise, by the time that requests were in flight in it) or none",
        "POLICY",
    )
    calibration_seconds: float = _setting(
        4.0,
        "for each variant at the most, after the warm-up: time to learn its energy (more where the sensor"
        " tells a mean of a second); 0: none",
        "S",
    )
    max_batch_sequences: int = _setting(32, "sequences in a batch at the most", "N", least=1)
    max_batch_tokens: int = _setting(
        0,
        "tokens in a batch at the most, padding included; a longer sequence runs alone "
        "(default, or 0: 2048 on a CPU, 32768 on a GPU); of a model that generates, in a step, in which "
        "a longer prompt is read in parts (128 and 2048)",
        "N",
    )
    kv_cache_bytes: str = _setting(
        "1GB",
        "of a model that generates: keys and values that the generations of a variant hold on a device; "
        "where they have no room, the newest waits",
        "BYTES",
    )
    max_wait_ms: float = _setting(0.0, "how long an idle device waits for a fuller batch", "MS")
    max_queue_sequences: int = _setting(1024, "sequences that may wait; more are refused", "N", least=1)
    max_queue_ms: float = _setting(
        10_000.0,
        "for how long a request may have to wait when it comes; it is refused where that would be longer, or "
        "longer than its deadline",
        "MS",
    )
    max_request_sequences: int = _setting(256, "sequences in one request at the most", "N", least=1)
    max_message_bytes: int = _setting(
        0,
        "largest message to take, also by HTTP; gRPC refuses a larger one once it has come. Calls in "
        "progress hold 64 such at the most, those of one caller 16 (default, or 0: 4 MiB, and 32 MiB for a "
        "model of images)",
        "BYTES",
        most=C_INT,
    )
    max_tokens: int = _setting(0, "longest sequence to accept (default, or 0: what the model takes)", "N")
    threads: int = _setting(0, "CPU threads that compute a batch (default, or 0: as many as pay)", "N")
    receipt_retention_seconds: float = _setting(600.0, "how long settled receipts can be fetched", "S")
    receipt_retention_count: int = _setting(100_000, "how many of them are kept at the most", "N", least=1)
    receipt_retention_bytes: str = _setting(
        "256MB", "memory for them at the most, of which one takes 1 kB and 231 B for each sequence", "BYTES"
    )
    account_book: str = _setting(
        "",
        "keep settled receipts and what they add up to: in this file, in PostgreSQL (postgresql://...), or "
        "without a value (or with auto) in a file for this --port in your state directory",
        "PATH_OR_URL",
        bare=AUTO_BOOK,
    )
    account_name: str = _setting(
        "", "of this server among those that write to one PostgreSQL (default: HOST:PORT)", "NAME"
    )
    account_receipts_seconds: float = _setting(
        86_400.0, "how long the account book keeps single receipts; what they add up to stays", "S"
    )
    account_receipts_bytes: str = _setting(
        "1GB", "room for them at the most, of which one takes about 600 B", "BYTES"
    )
    max_peer_in_flight: int = _setting(
        4096,
        "predictions that one caller without a key may have in flight; more are refused (a caller is an "
        "address, on this machine a connection; a key's own limit counts for who shows one)",
        "N",
        least=1,
    )
    max_connection_calls: int = _setting(
        1024,
        "calls in progress on one connection at the most; gRPC holds more back at the client, and tells no "
        "count of them, so there is no metric. As many streams may one caller have open, by all of his "
        "connections: more are refused",
        "N",
        least=1,
        most=C_INT,
    )
    max_connection_age_seconds: float = _setting(
        0.0,
        "a connection is closed at this age, give or take a tenth, once its calls have ended or "
        "--drain-seconds have passed; clients connect again by themselves; gRPC does not tell, so there is "
        "no metric (default, or 0: never)",
        "S",
        most=C_INT // 2000,  # in milliseconds; gRPC adds up to a tenth
    )
    default_deadline_seconds: float = _setting(
        600.0, "for a call that brings no deadline, streams apart but `Generate` (0: none)", "S"
    )
    max_deadline_seconds: float = _setting(
        3600.0,
        "a call that brings a later deadline gets this one, streams apart but `Generate` (0: any)",
        "S",
    )
    max_metrics_connections: int = _setting(
        8, "connections to the metrics port from one address at once; more are closed", "N", least=1
    )
    max_watchers: int = _setting(16, "clients that may watch all receipts at once; more are refused", "N")
    drain_seconds: float = _setting(
        15.0,
        "how long a shutdown waits for accepted requests; settling them takes up to 10 s more",
        "S",
        most=C_INT // 2000,
    )
    trust_remote_code: bool = _setting(False, "run code that comes with the model")

    def __post_init__(self) -> None:
        for name in _ITEMS:
            _check(name, flag(name), getattr(self, name))
        if self.meter == "replay" and not self.replay_file:
            raise ConfigError("--meter replay needs --replay-file FILE; `wattserve meter record` makes one")
        if self.replay_file and self.meter != "replay":
            raise ConfigError(f"--replay-file {self.replay_file}: is for --meter replay, not {self.meter}")
        self._check_who_may_listen()
        if self.account_name and "://" not in self.account_book:
            raise ConfigError(
                "--account-name tells servers apart that write to one PostgreSQL: it needs --account-book "
                "postgresql://..."
            )
        if self.max_request_sequences > self.max_queue_sequences:
            raise ConfigError(
                f"--max-request-sequences {self.max_request_sequences} is more than --max-queue-sequences "
                f"{self.max_queue_sequences}: such a request could never be accepted"
            )

    @property
    def corrects_sensor(self) -> bool:
        """Whether something is known of the sensor's gain."""
        return self.sensor_gain != 1 or self.sensor_gain_error > 0

    @property
    def metrics_address(self) -> str:
        """Where metrics are served: beside a server with TLS, only to this machine unless told otherwise."""
        return self.metrics_host or ("127.0.0.1" if self.tls_cert else self.host)

    def _check_who_may_listen(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("cert", "key") if self.tls_cert else ("key", "cert")
            raise ConfigError(f"--tls-{given} without --tls-{missing}: TLS needs both")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError("--tls-client-ca without --tls-cert and --tls-key: mutual TLS needs all three")
        if self.insecure and self.tls_cert:
            raise ConfigError("--insecure and --tls-cert contradict each other: leave one out")
        if not (self.tls_cert or self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines: give --tls-cert and --tls-key, or "
                "--insecure for a network that is trusted"
            )
        if not self.keys_file:
            for name in ("trust_tenant_header", "metrics_need_key"):
                if getattr(self, name):
                    raise ConfigError(f"{flag(name)} is about API keys: it needs --keys-file")
            return
        if self.open_admin:
            raise ConfigError("--open-admin and --keys-file contradict each other: a key says what it may")
        if not (self.tls_cert or is_loopback(self.host)):
            raise ConfigError(
                f"--keys-file with --host {self.host}: API keys are never sent in clear to other machines, "
                "--insecure or not; give --tls-cert and --tls-key"
            )
        if self.metrics_need_key and not is_loopback(self.metrics_address):
            raise ConfigError(
                f"--metrics-need-key with metrics at {self.metrics_address}: they are plain HTTP, and API "
                "keys are never sent in clear to other machines; leave them on 127.0.0.1, behind a proxy "
                "that speaks TLS"
            )


_GUARDS = ("keys_file", "tls_cert", "tls_key", "tls_client_ca")

_ITEMS: Mapping[str, Field[Any]] = {item.name: item for item in fields(ServerConfig)}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser, names: set[str] | None = None) -> None:
    """A flag for each setting (or those in `names`); a flag not given leaves no trace."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings, named as the flags are")
    for item in fields(ServerConfig):
        if names is not None and item.name not in names:
            continue
        shown = item.metadata["help"]
        if isinstance(item.default, bool):
            parser.add_argument(flag(item.name), action="store_true", default=argparse.SUPPRESS, help=shown)
            continue
        bare: dict[str, Any] = {}
        if item.metadata["bare"] is not None:
            bare = {"nargs": "?", "const": item.metadata["bare"]}
        if item.default not in ("", 0, OFF):
            shown += f" (default: {item.default})"
        parser.add_argument(
            flag(item.name),
            default=argparse.SUPPRESS,
            metavar=item.metadata["metavar"],
            help=shown.replace("%", "%%"),
            **bare,
        )


def flag_reader(flag_name: str, read: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse's `type`: what `read` complains of becomes a ConfigError that names the flag."""

    def read_flag(text: str) -> T:
        try:
            return read(text)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{flag_name}: {error}") from None

    return read_flag


def read_config(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ServerConfig:
    """flags: what was given on the command line, as text, and `config`, the file. Raises ConfigError."""
    given: dict[str, Any] = {}
    if flags.get("config"):
        given |= _read_file(Path(flags["config"]))
    for name in _ITEMS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if flags.get(name) == "":
            raise ConfigError(f"{flag(name)} is empty; leave it out for its default")
        if name in flags:
            given[name] = _parse(name, flag(name), flags[name])
        elif variable in environment:  # else nobody reads it: others set variables of such names too
            if name in _GUARDS and not environment[variable]:
                raise ConfigError(f"{variable} is empty, and guards the server: give it a value, or unset it")
            if name in given and not environment[variable]:
                raise ConfigError(
                    f"{variable} is empty, and {flags['config']} sets {name}: give it a value, or unset it"
                )
            given[name] = _parse(name, variable, environment[variable])
    return ServerConfig(**given)


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings and are none. Not errors: Kubernetes sets WATTSERVE_PORT_50051_TCP
    and its like by itself, for a service of that name."""
    known = {ENVIRONMENT_PREFIX + item.name.upper() for item in fields(ServerConfig)} | OTHER_VARIABLES
    return sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known)


def _read_file(path: Path) -> dict[str, Any]:
    """Every setting in it, checked, whether or not another one goes before it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of TOML, of a number or a nesting beyond its reader
        raise ConfigError(f"--config {path}: not a TOML file: {error}") from error
    settings: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in _ITEMS:
            table = "; settings stand in no table" if isinstance(value, dict) else ""
            hint = table or meant(name, _ITEMS) or f"; known: {', '.join(_ITEMS)}"
            raise ConfigError(f"--config {path}: unknown setting {key!r}{hint}")
        if name in settings:
            raise ConfigError(f"--config {path}: {name} is there twice, with dashes and without")
        settings[name] = value
    return {name: _parse(name, f"{path}: {name}", value) for name, value in settings.items()}


def _parse(name: str, where: str, value: Any) -> Any:
    """A setting's value, of the text or the TOML that stands in `where`. Raises ConfigError."""
    if _ITEMS[name].metadata["metavar"] == "BYTES" and type(value) is int:
        value = str(value)
    parsed = _converted(type(_ITEMS[name].default), where, value)
    _check(name, where, parsed)
    return parsed


def _check(name: str, where: str, value: Any) -> None:
    """What can be said of one setting alone. Raises ConfigError, naming `where` the value stands."""
    among = {"split_rule": SPLIT_RULES, "idle_policy": IDLE_POLICIES}.get(name)
    if among is not None and value not in among:
        raise ConfigError(f"{where} {value!r}: must be one of {', '.join(among)}")
    if value == "" and _ITEMS[name].default != "":
        raise ConfigError(f"{where} is empty; leave it out for its default")
    least, most, metavar = (_ITEMS[name].metadata[key] for key in ("least", "most", "metavar"))
    if metavar == "HOST" and _NUMERIC.fullmatch(value) and not is_address(value):
        raise ConfigError(f"{where} {value}: is no address, such as 127.0.0.1, 0.0.0.0 or ::1")
    if metavar == "BYTES" and isinstance(value, str) and value:
        amount = parse_bytes(value, where)
        if name == "max_model_memory" and not amount:
            raise ConfigError(f"{where} {value!r}: must be at least one byte; leave it out for no limit")
    if isinstance(value, str | bool):
        return
    if metavar == "PORT" and not least <= value <= 65535:
        raise ConfigError(f"{where} {value}: must be between 0 and 65535")
    if not least <= value < math.inf:
        allowed = f"at least {least}" if least else "a number, 0 or more"
        raise ConfigError(f"{where} {value}: must be {allowed}")
    if value > most:
        raise ConfigError(f"{where} {value}: must be at most {most:,}")
    if name == "sensor_gain" and not value:
        raise ConfigError(f"{where} 0: must be more than 0")
    if name == "sensor_gain_error" and value >= 1:
        raise ConfigError(f"{where} {value}: is relative; 0.05 means 5 %")


def parse_bytes(text: str, where: str) -> int:
    """E.g. ``2GB``, ``1.5GiB``, ``500000000``. Raises ConfigError, naming `where`."""
    number = text.strip().rstrip("BKMGTIibkmgt")
    unit = text.strip()[len(number) :].upper()
    try:
        amount = float_of(number) * _UNITS[unit]
    except (ValueError, KeyError):
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ConfigError(f"{where} {text!r}: must be an amount of memory such as 500MB, 2GB or 1.5GiB")
    return int(amount)


def _converted(kind: type, where: str, value: Any) -> Any:
    if kind is bool:
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() not in words:
            raise ConfigError(f"{where} {value!r}: must be true or false")
        return words[str(value).lower()]
    if kind is str:
        if not isinstance(value, str):
            raise ConfigError(f"{where} {value!r}: must be text")
        return value
    try:
        if isinstance(value, bool) or (kind is int and isinstance(value, float)):
            raise ValueError
        return {int: int_of, float: float_of}[kind](value) if isinstance(value, str) else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{where} {value!r}: must be {'a whole number' if kind is int else 'a number'}"
        ) from None
