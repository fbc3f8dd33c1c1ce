"""Folders of this package that hold a model, or copies in $WATTSERVE_CACHE; known by their digests."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from wattserve_server.errors import ConfigError

_sound: set[tuple[tuple[int, ...], str]] = set()  # versions of files that have their digest


def shipped_folder(name: str, package: Path, sha256: Mapping[str, str]) -> Path:
    """The folder of the model of that name. Where $WATTSERVE_CACHE is set that is a copy in there, made once;
    else the package's own, which may be read-only.

    Raises ConfigError where a file is not what was shipped, or the copy cannot be written.
    """
    cache = os.environ.get("WATTSERVE_CACHE")
    if not cache:
        return _shipped(name, package, sha256)
    folder = Path(cache) / f"{name}-{digest(sha256)[:12]}"
    try:
        if not folder.is_dir():
            _copy(_shipped(name, package, sha256), folder, sha256)
        return _checked(name, folder, sha256, f"delete {folder}, and it is copied again")
    except OSError as error:
        raise ConfigError(
            f"cannot keep the {name} model in the folder {cache}: {error.strerror or error}; set "
            "WATTSERVE_CACHE to a folder that can be written, or leave it unset"
        ) from error


def digest(files: Mapping[str, str]) -> str:
    """One SHA-256 of those of several files."""
    return hashlib.sha256("".join(f"{files[name]}  {name}\n" for name in sorted(files)).encode()).hexdigest()


def _shipped(name: str, package: Path, sha256: Mapping[str, str]) -> Path:
    return _checked(
        name, package, sha256, "install wattserve again (in a checkout: git checkout -- of that file)"
    )


def _checked(model: str, folder: Path, sha256: Mapping[str, str], remedy: str) -> Path:
    """A file is read once, and again when it was written since."""
    for name, expected in sha256.items():
        path = folder / name
        if not path.is_file():
            raise ConfigError(f"the {model} model is damaged: {path} is missing; {remedy}")
        state = path.stat()
        version = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        if (version, expected) in _sound:
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise ConfigError(
                f"the {model} model is damaged: {path} is not the file that was shipped; {remedy}"
            )
        _sound.add((version, expected))
    return folder


def _copy(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Into a sibling that is renamed: under its final name a folder is whole or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial-{secrets.token_hex(4)}")
    try:
        partial.mkdir()
        for name in names:
            shutil.copyfile(source / name, partial / name)
        os.replace(partial, folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
