"""Addresses of nats-servers: what can't be one is refused before anything is tried."""

import re
from urllib.parse import urlsplit

from bus.broker import Unreachable

_SCHEMES = ("nats", "tls", "ws", "wss")
_NAME = re.compile(r"(?!-)[\w-]{1,63}(?:\.(?!-)[\w-]{1,63})*\.?")
_NUMBERS = re.compile(r"[0-9a-fA-F:.]+(?:%\w+)?")


def check_url(url: str) -> None:
    """Raises Unreachable, in a line, for what can't be a server's address."""
    if why := _unusable(url):
        raise Unreachable(
            f"{shown(url)!r} is not the address of a nats-server ({why}): set NATS_URL (or bus.url) to "
            f"nats://HOST:PORT, e.g. nats://broker:4222 (also known: {', '.join(_SCHEMES[1:])})"
        )


def _unusable(url: str) -> str:
    """Why nothing can be reached by it; empty when something may be."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return "its port is no number up to 65535" if "ort" in str(error) else "its host is no address"
    if re.search(r"[\s\x00-\x1f\x7f]", url):  # which urlsplit takes out
        return "it holds white space" if url.strip() else "it is empty"
    if parts.scheme not in _SCHEMES:
        return f"nats has no scheme {parts.scheme!r}"
    if not host:
        return "it names no host"
    if not (_NUMBERS if "[" in parts.netloc else _NAME).fullmatch(host) or len(host) > 253:
        return f"{host[:80]!r} is no name of a host"
    if port == 0:
        return "port 0 is none"
    if "://" not in url and port is None:
        return "it has neither a scheme nor a port"
    if "@" in parts.netloc and not parts.username:
        return "there is no user or token before its @"
    if not parts.scheme.startswith("ws") and (parts.path.strip("/") or parts.query or parts.fragment):
        return "it goes on behind the port"
    return ""


def shown(url: str) -> str:
    """The address for logs and messages, without what authorizes."""
    scheme, sep, rest = url.rpartition("://")
    where = rest.rpartition("@")
    return f"{scheme}{sep}{'***@' if where[1] else ''}{where[2]}"
