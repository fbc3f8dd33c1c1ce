"""Where the client has its key from, and to whom it does not show it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from wattserve_client import Client
from wattserve_client.cli import main
from wattserve_client.keys import VARIABLE, ApiKey

KEY = "wattserve_0123456789ab_planted"


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def shown(key: ApiKey) -> str:
    return dict(key.metadata).get("authorization", "")


def test_what_is_given_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}-f\n")
    assert shown(ApiKey()) == ""
    monkeypatch.setenv(VARIABLE, f"{KEY}-v")
    assert shown(ApiKey()) == f"Bearer {KEY}-v"
    assert shown(ApiKey(KEY)) == f"Bearer {KEY}"
    assert shown(ApiKey(file=file)) == f"Bearer {KEY}-f"
    assert shown(ApiKey("")) == ""
    with pytest.raises(ValueError, match="both given"):
        ApiKey(KEY, file)


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first")
    key = ApiKey(file=file)
    file.write_text("")
    os.utime(file, ns=(1, 1))
    assert shown(key) == "Bearer first", "while it is being written"
    file.write_text("second")
    os.utime(file, ns=(2, 2))
    assert shown(key) == "Bearer second"
    file.unlink()
    assert shown(key) == "Bearer second"


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("target", "is_refused"),
    [
        ("127.0.0.1:1", False),
        ("[::1]:1", False),
        ("localhost:1", False),
        ("unix:/tmp/w.sock", False),
        ("192.0.2.1:1", True),
        ("models.example.org:1", True),
        ("localhost.example.org:1", True),
        ("ipv4:192.0.2.1:1", True),
        ("dns:///localhost:1", True),
    ],
)
def test_a_key_is_never_sent_in_clear_to_another_machine(kind: Any, target: str, is_refused: bool) -> None:
    with kind(target, tls=True, api_key=KEY), kind(target, api_key=""):
        pass
    if not is_refused:
        with kind(target, api_key=KEY):
            return
    with pytest.raises(ValueError, match=r"sent in clear to .*: pass tls=") as caught:
        kind(target, api_key=KEY)
    assert KEY not in str(caught.value)


def test_one_of_several_servers_elsewhere_is_enough_for_a_refusal() -> None:
    with pytest.raises(ValueError, match=r"in clear to 192\.0\.2\.1:1"):
        Client(["127.0.0.1:1", "192.0.2.1:1"], api_key=KEY)


@pytest.mark.parametrize("kind", BOTH)
def test_in_clear_nothing_goes_through_a_proxy(
    kind: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # where nobody is
    for variable in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with kind(server.target, api_key=KEY, retry=False) as client:
        assert client.is_ready()


@pytest.mark.parametrize("text", ["two words", "wattserve_\n", "schlüssel"])
def test_what_is_no_key_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="api_key: an API key is one word of printable ASCII") as caught:
        ApiKey(text)
    assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "key: cannot be read (No such file"),
        ("", "key: holds no API key"),
        ("k" * 20_000, "key: is longer than an API key"),
    ],
)
def test_the_command_names_a_file_that_is_no_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, why: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    assert main(["info", "--api-key-file", str(file)]) == 2
    assert why in capsys.readouterr().err


def test_the_command_speaks_of_its_own_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    assert main(["--target", "192.0.2.1:1", "--api-key-file", str(file), "info"]) == 2
    told = capsys.readouterr().err
    assert "in clear to 192.0.2.1:1: pass --tls" in told
    assert KEY not in told
