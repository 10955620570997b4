"""Decides which web pages may use a server without a key: its own pages, and pages of allowed origins.

A browser sends requests of any page to any address, a local one too. It names the page's origin; other programs do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from .errors import RequestError


class Origins:
    """The origins that may use one server."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._any = "*" in allowed
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)
        self._hosts = frozenset(urlsplit(origin).hostname for origin in self._allowed)

    def check(self, scope: Scope) -> None:
        """Raises RequestError, 403, for a request from a page that may not use the server."""
        if self._any:
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin, host = headers.get(b"origin"), headers.get(b"host", "")
        name = _name(f"//{host}")
        if origin is not None and origin.lower() not in self._allowed:
            if _host_and_port(origin) != _host_and_port(f"{scope.get('scheme', 'http')}://{host}") or not _is_own(name):
                raise _refused(f"the origin {origin!r:.200}")
        elif origin is None and headers.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            raise _refused("a page of another site")
        elif name not in self._hosts and not _is_own(name) and _is_own(str((scope.get("server") or ("",))[0])):
            # a foreign name that was pointed to this address (DNS rebinding)
            raise _refused(f"the host {name!r:.200} at a local address")


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return "?.?"


def _host_and_port(url: str) -> tuple[str, int | None]:
    """The host and the port of an origin."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "?", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "?.?", None


def _is_own(name: str) -> bool:
    """Whether a host is an address or a name without a dot, which no one else can bind to an address."""
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True


def _refused(who: str) -> RequestError:
    message = f"{who} is not allowed to use this server: start it with --allow-origin, or with --api-key"
    return RequestError(HTTPStatus.FORBIDDEN, message, code="origin_not_allowed")
