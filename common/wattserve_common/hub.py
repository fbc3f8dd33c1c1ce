"""Whether the Hugging Face hub can be asked at all: its own client retries for a minute and more."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def hub_is_reachable() -> bool:
    """Whether its name resolves, and it may be asked."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    try:
        socket.getaddrinfo(hub.hostname, hub.port or 443)
    except OSError:
        return False
    return True
