"""An API key: where it comes from, and how a call shows it. It is in no message and in no `repr`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from wattserve_client._servers import PathLike
from wattserve_common.arguments import host_and_port, is_loopback

VARIABLE = "WATTSERVE_API_KEY"
# Of a channel without TLS. gRPC would go through a proxy that the environment names (`http_proxy`), to this
# machine's own ports too, and the proxy would read the key and the texts.
IN_CLEAR = [("grpc.enable_http_proxy", 0)]

Metadata = tuple[tuple[str, str], ...]

_TEXT = re.compile(r"[!-~]+")
_LONGEST = 16_384  # characters of a key's file


class ApiKey:
    """The key of a client; none, which shows nothing, where it has none."""

    def __init__(self, text: str | None = None, file: PathLike | None = None) -> None:
        """text: the key; empty for none. file: one that holds it, which is read again when it changes.
        Neither: the variable WATTSERVE_API_KEY. Raises OSError; ValueError, which does not repeat it, for
        what is no key."""
        if text is not None and file is not None:
            raise ValueError("api_key and api_key_file are both given: leave one out")
        self._file = None if file is None else Path(file)
        self._modified_ns = 0
        self._metadata: Metadata = ()
        if self._file is None:
            source = "api_key" if text is not None else VARIABLE
            self._show(os.environ.get(VARIABLE, "") if text is None else text, source)
        else:
            self._read(self._file)

    def check_private(self, addresses: Sequence[str], has_tls: bool) -> None:
        """Raises ValueError where the key would be sent in clear to another machine."""
        clear = [address for address in addresses if not _is_local(address)]
        if self._metadata and not has_tls and clear:
            raise ValueError(f"an API key would be sent in clear to {clear[0]}: pass tls=, or no key")

    @property
    def metadata(self) -> Metadata:
        """Of a call that is made now."""
        if self._file is not None:
            try:
                if self._file.stat().st_mtime_ns != self._modified_ns:
                    self._read(self._file)
            except (OSError, ValueError):
                pass  # it is being replaced; the key of before is refused if it holds no more
        return self._metadata

    def _read(self, file: Path) -> None:
        modified_ns = file.stat().st_mtime_ns
        with file.open(encoding="ascii", errors="replace") as opened:
            text = opened.read(_LONGEST + 1).strip()
        if len(text) > _LONGEST:
            raise ValueError(f"{file}: is longer than an API key")
        if not text:
            raise ValueError(f"{file}: holds no API key")
        self._show(text, str(file))
        self._modified_ns = modified_ns

    def _show(self, text: str, source: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"{source} is a {type(text).__name__}; it must be a str")
        if text and not _TEXT.fullmatch(text):
            raise ValueError(f"{source}: an API key is one word of printable ASCII characters")
        self._metadata = (("authorization", f"Bearer {text}"),) if text else ()


def _is_local(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    try:
        return is_loopback(host_and_port(address)[0])
    except ValueError:  # another form of gRPC's
        return False
