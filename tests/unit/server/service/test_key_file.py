"""API keys: what the file holds of them, what it refuses, and how the command changes it."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from pathlib import Path

import pytest

from wattserve_server.errors import ConfigError, UnauthenticatedError
from wattserve_server.service.keys import ApiKey, Keys, changing, new_key, read_keys
from wattserve_tools.cli import main

GOOD = f'[[keys]]\nid = "0123456789ab"\nsha256 = "{"0" * 64}"\ntenant = "shop"\nmay = ["predict"]\n'


def made(tenant: str = "shop") -> tuple[str, ApiKey]:
    return new_key(tenant, ["predict"], 2.5, 3, ["bank"])


def test_a_key_is_known_by_its_hash_alone() -> None:
    text, key = made()
    assert len(text.split("_", 2)[2]) * 6 >= 256, "bits"
    assert text not in repr(key)
    assert text.split("_", 2)[2] not in repr(key)
    assert Keys([key]).shown_by([f"bearer {text}"]) is key


def test_a_key_that_cannot_be_told_is_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["keys", "add", "--file", str(tmp_path / "keys"), "--tenant", "shop"]) == 2
    assert "cannot be told (No space left on device), so none was added" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([], "asks for an API key: send `authorization: Bearer KEY` .*--api-key-file"),
        (["Bearer"], "is not Bearer and a key, once"),
        (["Basic {key}"], "is not Bearer and a key, once"),
        (["Bearer {key}", "Bearer {key}"], "is not Bearer and a key, once"),
        (["Bearer {key}x"], "is not Bearer and a key, once"),
        (["Bearer {changed}"], "does not know the API key"),
        (["Bearer {other}"], "does not know the API key"),
    ],
)
def test_what_shows_no_known_key_is_refused_without_repeating_it(headers: list[str], why: str) -> None:
    text, key = made()
    words = {"key": text, "changed": text[:-4] + "AAAA", "other": made()[0]}
    with pytest.raises(UnauthenticatedError, match=why) as caught:
        Keys([key]).shown_by([header.format(**words) for header in headers])
    assert text.split("_", 2)[2][:8] not in str(caught.value)


def test_what_is_written_is_read_and_is_its_owners_alone(tmp_path: Path) -> None:
    path, (_, key), (_, other) = tmp_path / "keys.toml", made(), made("bank")
    with changing(path) as keys:
        keys[key.id] = key
    with changing(path) as keys:
        keys[other.id] = other
    found = read_keys(path)
    assert list(found.by_id.values()) == [key, other]
    assert found.tenants == ["shop", "bank"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["keys.toml"]


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(GOOD)

    def change() -> None:
        with changing(path) as keys:
            keys.clear()
            raise ConfigError("not so")

    with pytest.raises(ConfigError, match="not so"):
        change()
    assert path.read_text() == GOOD
    assert os.listdir(tmp_path) == ["keys.toml"]


def test_a_link_goes_on_pointing_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, (_, key) = tmp_path / "keys.toml", made()
    path.symlink_to(tmp_path / "real" / "keys.toml")
    with changing(path) as keys:
        keys[key.id] = key
    assert path.is_symlink()
    assert list(read_keys(path).by_id) == [key.id]


def test_links_that_lead_to_each_other_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with (
        pytest.raises(ConfigError, match="one: symbolic links that lead to each other"),
        changing(tmp_path / "one"),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("keys = 3", "holds tables"),
        ("[[keys]", "not a TOML file"),
        (GOOD + "in_flight = " + "9" * 5000, "not a TOML file"),
        ("keys = " + "[" * 5000, "not a TOML file"),
        ("limit = 3", "holds tables"),
        (GOOD + "requests = 3\n", "key 1: holds other things than id, sha256, tenant, may"),
        (GOOD + 'in_flight = "3"\n', "key 1: in_flight = '3' is no int"),
        (GOOD + "in_flight = true\n", "key 1: in_flight = True is no int"),
        (GOOD + "in_flight = -1\n", "key 1: requests_per_second and in_flight are 0"),
        (GOOD + "requests_per_second = nan\n", "key 1: requests_per_second and in_flight are 0"),
        (GOOD + "in_flight = " + "9" * 400, "in_flight are 0, for no limit, to 1,000,000,000"),
        (GOOD + "requests_per_second = 1e300\n", "are 0, for no limit, to 1,000,000,000"),
        (GOOD + 'created = "[/red]"\n', "key 1: created is a day, such as 2026-11-27"),
        (GOOD + "names = [3]\n", "is no list of texts"),
        (GOOD + GOOD, "two keys have one id"),
        (GOOD.replace('["predict"]', "[]"), "it has no rights; choose from predict, read-own"),
        (GOOD.replace('"predict"', '"all"'), "'all' is no right"),
        (GOOD.replace('"shop"', '"a b"'), "'a b' is no tenant"),
        (GOOD.replace("0123456789ab", "x"), "id and sha256 are 12 and 64 digits"),
        (GOOD.replace("tenant", "may", 1), "not a TOML file"),
        (GOOD.replace('tenant = "shop"\n', ""), "key 1: tenant is missing"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        read_keys(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_mark_of_its_encoding_at_its_beginning_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(GOOD, encoding="utf-8-sig")  # as some editors save
    assert len(read_keys(path).by_id) == 1


def test_a_pipe_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="is no regular file"):
        read_keys(path)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(GOOD)
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="others may write it, and so make keys"):
        read_keys(path)


def test_the_command_makes_lists_and_revokes_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "keys.toml")
    assert main(["keys", "add", "--file", file, "--tenant", "shop", "--may", "predict,admin"]) == 0
    told = capsys.readouterr()
    key = read_keys(Path(file)).shown_by([f"Bearer {told.out.strip()}"])
    assert (key.tenant, key.may, key.in_flight) == ("shop", ("predict", "admin"), 0)
    assert told.out.strip() not in told.err + Path(file).read_text()
    assert main(["keys", "list", "--file", file]) == 0
    listed = capsys.readouterr().out
    assert key.id in listed
    assert "predict, admin" in listed
    assert key.sha256 not in listed
    assert main(["keys", "revoke", "--file", file, key.id]) == 0
    assert read_keys(Path(file)).by_id == {}
    assert main(["keys", "revoke", "--file", file, key.id]) == 2
    assert f"no key has the id '{key.id}'; it holds none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["list", "--file", "{0}/no"], "{0}/no: No such file or directory"),
        (["add", "--file", "{0}/no/keys", "--tenant", "shop"], "{0}/no: No such file or directory"),
        (["add", "--file", "{0}/keys", "--tenant", "a/b"], "'a/b' is no tenant"),
        (["add", "--file", "{0}/keys", "--tenant", "a", "--may", "fly"], "'fly' is no right"),
        (
            ["add", "--file", "{0}/keys", "--tenant", "a", "--in-flight", "0"],
            "--in-flight: 0 must be at least",
        ),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    assert main(["keys", *(argument.format(tmp_path) for argument in arguments)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert why.format(tmp_path) in told.err
