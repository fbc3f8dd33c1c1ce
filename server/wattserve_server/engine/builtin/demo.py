"""The `demo` model: files of this package, or a copy of them in $WATTSERVE_CACHE; known by their digests."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from wattserve_server.errors import ConfigError

SHIPPED = Path(__file__).with_name("demo")
HELDOUT = "heldout.jsonl"

# What `make demo-model` prints; tools/demo_model holds the recipe.
SHA256 = {
    "MODEL.md": "a512f2a71c8b4136e803fa9e234a0cf2a84727cab3165a4d2e42bb156bf9d5b9",
    "config.json": "bc2ec9aa62db73a88b59c1879eca50354c54c5ad47988b3142fea8b4ff62e6ef",
    "heldout.jsonl": "2df2031d9a8d8983d485b6e68c05d6c6eff918902a9bbb947b4aea6cb9ef0d74",
    "model.safetensors": "09dbe93daa4db98bd474207311ade493dbb800f0890e34387bd3907f9c0c7ec0",
    "tokenizer.json": "253a3c6ded3b8b4c9f3a25e24b4da6a8811011c49af94bda7f62cd1bb5228f29",
    "tokenizer_config.json": "f0c9d6389f7bbc05ef51605a9c1db499b00e8b053aa6cba23212247f22d41423",
}  # fmt: skip

_sound: set[tuple[tuple[int, ...], str]] = set()  # versions of files that have their digest


def demo_folder() -> Path:
    """The folder that holds it. Where $WATTSERVE_CACHE is set that is a copy in there, made once; else the
    package's own, which may be read-only.

    Raises ConfigError where a file is not what was shipped, or the copy cannot be written.
    """
    cache = os.environ.get("WATTSERVE_CACHE")
    if not cache:
        return _shipped()
    folder = Path(cache) / f"demo-{digest(SHA256)[:12]}"
    try:
        if not folder.is_dir():
            _copy(_shipped(), folder)
        return _checked(folder, f"delete {folder}, and it is copied again")
    except OSError as error:
        raise ConfigError(
            f"cannot keep the demo model in the folder {cache}: {error.strerror or error}; set "
            "WATTSERVE_CACHE to a folder that can be written, or leave it unset"
        ) from error


def digest(files: Mapping[str, str]) -> str:
    """One SHA-256 of those of several files."""
    return hashlib.sha256("".join(f"{files[name]}  {name}\n" for name in sorted(files)).encode()).hexdigest()


def _shipped() -> Path:
    return _checked(SHIPPED, "install wattserve again (in a checkout: git checkout -- of that file)")


def _checked(folder: Path, remedy: str) -> Path:
    """A file is read once, and again when it was written since."""
    for name, expected in SHA256.items():
        path = folder / name
        if not path.is_file():
            raise ConfigError(f"the demo model is damaged: {path} is missing; {remedy}")
        state = path.stat()
        version = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        if (version, expected) in _sound:
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise ConfigError(f"the demo model is damaged: {path} is not the file that was shipped; {remedy}")
        _sound.add((version, expected))
    return folder


def _copy(source: Path, folder: Path) -> None:
    """Into a sibling that is renamed: under its final name a folder is whole or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial-{secrets.token_hex(4)}")
    try:
        partial.mkdir()
        for name in SHA256:
            shutil.copyfile(source / name, partial / name)
        os.replace(partial, folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
