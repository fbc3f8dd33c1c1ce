"""Where settings come from, and what is said of wrong ones."""

import re
from pathlib import Path
from typing import Any

import pytest

from wattserve_server.config import OFF, ServerConfig, parse_bytes, read_config, unknown_variables
from wattserve_server.errors import ConfigError


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "wattserve.toml"
    file.write_text('port = 1\nmetrics-port = 2\nmodel = "file"\n')
    flags = {"config": str(file), "port": "3"}
    config = read_config(flags, {"WATTSERVE_PORT": "4", "WATTSERVE_METRICS_PORT": "5"})
    assert (config.port, config.metrics_port, config.model) == (3, 5, "file")
    assert (config.host, config.http_port) == ("127.0.0.1", OFF)


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"port": "99999"}, {}, "--port 99999: must be between 0 and 65535"),
        ({"http_port": "-2"}, {}, "--http-port -2: must be between 0 and 65535"),
        ({"variants": ""}, {}, "--variants is empty; leave it out for its default"),
        ({}, {"WATTSERVE_MODEL": ""}, "WATTSERVE_MODEL is empty; leave it out for its default"),
        ({}, {"WATTSERVE_METER": ""}, "WATTSERVE_METER is empty; leave it out for its default"),
        ({"port": "many"}, {}, "--port 'many': must be a whole number"),
        ({}, {"WATTSERVE_PORT": "x"}, "WATTSERVE_PORT 'x': must be a whole number"),
        ({"max_batch_sequences": "0"}, {}, "--max-batch-sequences 0: must be at least 1"),
        ({"max_wait_ms": "-1"}, {}, "--max-wait-ms -1.0: must be a number, 0 or more"),
        ({"max_wait_ms": "nan"}, {}, "--max-wait-ms nan: must be a number, 0 or more"),
        ({}, {"WATTSERVE_TRUST_REMOTE_CODE": "perhaps"}, "must be true or false"),
        ({"max_queue_sequences": "8"}, {}, "is more than --max-queue-sequences 8"),
        ({"split_rule": "fair"}, {}, "--split-rule 'fair': must be one of shapley, stand-alone, tokens"),
        ({"meter": "replay"}, {}, "--meter replay needs --replay-file FILE"),
        ({"replay_file": "r"}, {}, "--replay-file r: is for --meter replay, not auto"),
        ({"config": "/nowhere.toml"}, {}, "--config /nowhere.toml"),
        ({"host": "0.0.0.0"}, {}, "--host 0.0.0.0 can be reached from other machines: give --tls-cert and"),
        ({"host": "db.example"}, {}, "--insecure for a network that is trusted"),
        (
            {"keys_file": "k", "host": "0.0.0.0", "insecure": "yes"},
            {},
            "never sent in clear to other",
        ),
        ({"keys_file": "k", "open_admin": "yes"}, {}, "--open-admin and --keys-file contradict each other"),
        ({"trust_tenant_header": "yes"}, {}, "--trust-tenant-header is about API keys: it needs --keys-file"),
        ({"metrics_need_key": "yes"}, {}, "--metrics-need-key is about API keys: it needs --keys-file"),
        (
            {"keys_file": "k", "metrics_need_key": "yes", "metrics_host": "10.0.0.1"},
            {},
            "--metrics-need-key with metrics at 10.0.0.1: they are plain HTTP",
        ),
        ({}, {"WATTSERVE_KEYS_FILE": ""}, "WATTSERVE_KEYS_FILE is empty, and guards the server"),
        ({}, {"WATTSERVE_TLS_CLIENT_CA": ""}, "WATTSERVE_TLS_CLIENT_CA is empty, and guards the server"),
        ({"receipt_retention_count": "5000000000"}, {}, "must be at most 2,147,483,647"),
        ({"receipt_retention_seconds": "1e300"}, {}, "must be at most 2,147,483,647"),
        ({"tls_cert": "c"}, {}, "--tls-cert without --tls-key: TLS needs both"),
        ({"tls_key": "k"}, {}, "--tls-key without --tls-cert: TLS needs both"),
        ({"tls_client_ca": "a"}, {}, "--tls-client-ca without --tls-cert and --tls-key"),
        ({"tls_cert": "c", "tls_key": "k", "insecure": "yes"}, {}, "--insecure and --tls-cert contradict"),
    ],
)
def test_a_wrong_setting_is_named(flags: dict[str, str], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(flags, environment)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("calibration", '"rows"'), ("metrics_need_key", "true")])
def test_an_empty_variable_takes_nothing_of_the_file_away(name: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "wattserve.toml"
    file.write_text(f"{name} = {value}\n")
    with pytest.raises(ConfigError, match=f"is empty, and .* sets {name}: give it a value, or unset it"):
        read_config({"config": str(file)}, {f"WATTSERVE_{name.upper()}": ""})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blah = 1", "unknown setting 'blah'; known: model,"),
        ("prot = 1", "unknown setting 'prot'; did you mean port?"),
        ("[server]\nport = 1", "unknown setting 'server'; settings stand in no table"),
        ("max-wait-ms = 1\nmax_wait_ms = 2", "max_wait_ms is there twice, with dashes and without"),
        ('kv-cache-bytes = "1 gigs"', "wattserve.toml: kv_cache_bytes '1 gigs': must be an amount of memory"),
        ("port = ", "Invalid value"),
        ("port = true", "must be a whole number"),
        ("model = 3", "model 3: must be text"),
        (f"port = {'9' * 5000}", "wattserve.toml: "),
        (f"model = {'[' * 5000}", "wattserve.toml: "),
        (f"max-queue-ms = {'9' * 400}", "must be a number"),
        ("max_wait_ms = nan", "wattserve.toml: max_wait_ms nan: must be a number, 0 or more"),
        ("port = 99999", "wattserve.toml: port 99999: must be between 0 and 65535"),
        ('split-rule = "fair"', "wattserve.toml: split_rule 'fair': must be one of shapley,"),
        ("sensor_gain = 0", "wattserve.toml: sensor_gain 0: must be more than 0"),
        ("sensor_gain_error = 1", "wattserve.toml: sensor_gain_error 1.0: is relative"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wattserve.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config({"config": str(file)}, {})
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("value", ['"abc"', "99999"])
def test_a_wrong_value_in_a_file_is_named_though_a_flag_overrides_it(tmp_path: Path, value: str) -> None:
    file = tmp_path / "wattserve.toml"
    file.write_text(f"port = {value}")
    with pytest.raises(ConfigError, match=r"wattserve\.toml: port '?(abc|99999)'?: must be"):
        read_config({"config": str(file), "port": "0"}, {})


@pytest.mark.parametrize("name", ["kv_cache_bytes", "receipt_retention_bytes", "max_model_memory"])
def test_memory_may_be_a_number_of_bytes_and_a_wrong_amount_is_named_before_anything_is_loaded(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "wattserve.toml"
    file.write_text(f"{name} = 1500000")
    assert parse_bytes(getattr(read_config({"config": str(file)}, {}), name), name) == 1_500_000
    variable = f"WATTSERVE_{name.upper()}"
    with pytest.raises(ConfigError, match=f"{variable} '2XB': must be an amount of memory such as 500MB"):
        read_config({}, {variable: "2XB"})
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} '-1': must be an amount of memory"):
        read_config({name: "-1"}, {})


@pytest.mark.parametrize("amount", ["0", "0GB", "0.4B"])
def test_no_memory_for_models_is_not_taken_for_no_limit(amount: str, tmp_path: Path) -> None:
    file = tmp_path / "wattserve.toml"
    file.write_text(f"max_model_memory = '{amount}'")
    words = f"{amount!r}: must be at least one byte; leave it out for no limit"
    for given, environment, where in (
        ({"max_model_memory": amount}, {}, "--max-model-memory"),
        ({}, {"WATTSERVE_MAX_MODEL_MEMORY": amount}, "WATTSERVE_MAX_MODEL_MEMORY"),
        ({"config": str(file)}, {}, f"{file}: max_model_memory"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(where)} {re.escape(words)}$"):
            read_config(given, environment)
    assert read_config({}, {"WATTSERVE_MAX_MODEL_MEMORY": ""}).max_model_memory == ""
    assert read_config({"max_model_memory": "1B"}, {}).max_model_memory == "1B"


@pytest.mark.parametrize("digits", ["1_0", "\u0661\u0660"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("port", "must be a whole number"),
        ("drain_seconds", "must be a number"),
        ("kv_cache_bytes", "must be an amount of memory"),
    ],
)
def test_numbers_are_in_plain_digits(name: str, words: str, digits: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} '{digits}': {words}"):
        read_config({name: digits}, {})
    with pytest.raises(ConfigError, match=f"^WATTSERVE_{name.upper()} '{digits}': {words}"):
        read_config({}, {f"WATTSERVE_{name.upper()}": digits})


def test_a_variable_that_a_flag_overrides_may_be_anothers() -> None:
    """Kubernetes sets this one for a service named wattserve."""
    assert read_config({"port": "1"}, {"WATTSERVE_PORT": "tcp://10.0.0.1:50051"}).port == 1


def test_the_environment_can_switch_remote_code_on_and_off() -> None:
    assert read_config({}, {"WATTSERVE_TRUST_REMOTE_CODE": "1"}).trust_remote_code is True
    assert read_config({}, {"WATTSERVE_TRUST_REMOTE_CODE": "false"}).trust_remote_code is False
    assert ServerConfig().trust_remote_code is False


@pytest.mark.parametrize("setting", ["host", "metrics_host"])
@pytest.mark.parametrize("wrong", ["999.1.1.1", "1.2.3", "127.0.0.1:50051", "[::1]", "::g", "1.2.3.4.5"])
def test_what_is_no_address_is_told_as_that(setting: str, wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({setting: wrong, "insecure": "yes"}, {})
    assert str(caught.value).endswith(f"host {wrong}: is no address, such as 127.0.0.1, 0.0.0.0 or ::1")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "fe80::1%lo", "10.0.0.1", "db.example", "10.example", "node7"]
)
def test_an_address_or_a_name_is_taken(host: str) -> None:
    assert read_config({"host": host, "insecure": "yes"}, {}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_what_only_this_machine_reaches_needs_no_certificate(host: str) -> None:
    assert ServerConfig(host=host).host == host


def test_beside_a_server_with_certificates_metrics_stay_on_this_machine_unless_told_otherwise() -> None:
    certified: dict[str, Any] = {"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k"}
    assert ServerConfig(**certified).metrics_address == "127.0.0.1"
    assert ServerConfig(**certified, metrics_host="10.0.0.1").metrics_address == "10.0.0.1"
    assert ServerConfig(host="0.0.0.0", insecure=True).metrics_address == "0.0.0.0"


@pytest.mark.parametrize("given", [{"insecure": True}, {"tls_cert": "c", "tls_key": "k"}])
def test_who_says_so_may_listen_to_other_machines(given: dict[str, Any]) -> None:
    assert ServerConfig(host="0.0.0.0", **given).host == "0.0.0.0"


def test_a_misspelt_variable_is_named_and_the_others_are_not() -> None:
    found = unknown_variables(
        {"WATTSERVE_PROT": "1", "WATTSERVE_PORT": "1", "WATTSERVE_CACHE": "x", "PATH": ""}
    )
    assert found == ["WATTSERVE_PROT"]


def test_the_image_lets_nobody_administer_from_elsewhere() -> None:
    root = Path(__file__).parents[3]
    for file in ("Dockerfile", "deploy/compose.yaml"):
        assert "admin" not in (root / file).read_text().lower()


@pytest.mark.parametrize(
    "name", ["max_message_bytes", "max_connection_calls", "max_connection_age_seconds", "drain_seconds"]
)
def test_what_grpc_takes_as_a_c_int_is_refused_beyond_it(name: str) -> None:
    with pytest.raises(ConfigError, match=r"10000000000.*: must be at most "):
        ServerConfig(**{name: 10_000_000_000})  # type: ignore[arg-type]
