"""Middleware for every request: checks the key and the body's size, counts the answer, turns errors into JSON."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pardec.models.errors import SpecError

from .errors import RequestError, as_request_error

if TYPE_CHECKING:
    from .limits import Limits
    from .metrics import Metrics

log = logging.getLogger("pardec.server")

_ENDPOINTS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
    *("/v1/messages/count_tokens", "/v1/images/generations", "/v1/choose", "/v1/models", "/health", "/metrics", "/"),
)
_DRAIN = 64 * 2**20  # bytes of a body that is too large, which are read and dropped
_GONE = 499  # the client closed the request; nobody reads it but the metrics


class Guard:
    """ASGI middleware for every request."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, limits: Limits, api_key: str | None, origins: Sequence[str] = ()
    ) -> None:
        self.app, self.metrics, self.limits = app, metrics, limits
        self._origins = Origins(origins)
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # the ASGI server leaves the body out
            scope = {**scope, "method": "GET"}
        started, status, path = time.monotonic(), 0, scope["path"]

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check_key(scope)
            if self._key is None:  # else no page of another site can know it
                self._origins.check(scope)
            await self.app(scope, self._bounded(receive), noting)
        except ClientDisconnect:
            self.metrics.left()
            status = status or _GONE
        except Exception as error:
            answer = as_request_error(error)
            if answer.code == "internal":
                log.exception("%s %s failed", scope["method"], path)
            if not status:  # else it has begun, and the connection ends
                await answer.response(path)(scope, receive, noting)
        finally:
            endpoint = path if path in _ENDPOINTS else "other"
            self.metrics.answered(endpoint, status or _GONE, time.monotonic() - started)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or scope["path"] in ("/", "/health"):
            return
        headers_of = dict(scope["headers"])
        scheme, _, given = headers_of.get(b"authorization", b"").partition(b" ")
        own = headers_of.get(b"x-api-key", b"")  # Anthropic's clients
        bearer = given.strip() if scheme.lower() == b"bearer" else b""
        if not hmac.compare_digest(bearer, self._key) and not hmac.compare_digest(own, self._key):
            headers = {"WWW-Authenticate": "Bearer"}
            message = "the API key is missing or wrong: send it as Authorization: Bearer KEY"
            raise RequestError(message, code="invalid_api_key", headers=headers, status=HTTPStatus.UNAUTHORIZED)

    def _bounded(self, receive: Receive) -> Receive:
        """`receive` that refuses a body that is too large."""
        limit, size, whole = self.limits.body, 0, False
        until = asyncio.get_running_loop().time() + self.limits.receiving

        async def bounded() -> Message:
            nonlocal size, whole
            if whole:  # the next message is the client's disconnect
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise _too_slow(self.limits.receiving) from None
            whole = not message.get("more_body")
            size += len(message.get("body", b""))
            if size <= limit:
                return message
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):  # a client reads no answer while it still sends
                    while message.get("more_body") and size < limit + _DRAIN:
                        message = await receive()
                        size += len(message.get("body", b""))
            raise _too_large(limit)

        return bounded


def _too_large(limit: int) -> RequestError:
    message = f"the body is larger than the {limit} bytes that this server takes"
    # The rest of it is not read.
    headers = {"Connection": "close"}
    return RequestError(message, code="body_too_large", headers=headers, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _too_slow(seconds: float) -> RequestError:
    message = f"the request did not arrive within {seconds:g} s"
    headers = {"Connection": "close"}
    return RequestError(message, code="timeout", headers=headers, status=HTTPStatus.REQUEST_TIMEOUT)


def as_browsers_write(origins: Sequence[str]) -> list[str]:
    """Origins in the spelling of a request's header. Raises SpecError for one that no browser sends."""
    found = [origin.rstrip("/").lower() for origin in origins]
    for given, origin in zip(origins, found, strict=True):
        readable = _host_and_port(origin)[0] not in ("?", "?.?")
        is_one = readable and re.fullmatch(r"[a-z][a-z\d+.-]*://[^\s/?#@]+", origin)
        if origin not in ("*", "null") and not is_one:
            raise SpecError(
                f"{given!r} is no origin of web pages",
                hint='an origin is a scheme, a host and, where a page has one, a port: https://my.app; "*" is any',
            )
    return found


class Origins:
    """The web pages that may use a server without a key: its own, and pages of allowed origins.

    A browser sends requests of any page to any address, a local one too. It names the page's origin; other programs do
    not.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._any = "*" in allowed
        self._allowed = frozenset(allowed)
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
    return RequestError(message, code="origin_not_allowed", status=HTTPStatus.FORBIDDEN)
