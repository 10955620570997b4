"""Errors for clients: a status and a JSON body in the form of OpenAI's API, or of Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from pardec.models.errors import ModelError, PardecError, SpecError

from ..memory import OutOfMemory

NO_SUCH_MODEL = HTTPStatus(404)
UNSUPPORTED_THREAD = "thread_unsupported_request"  # the code by which Anthropic's clients go on without a thread
_KINDS = {  # Anthropic's
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}
_LONGEST = 1000  # characters of a message, which may repeat what a client sent


class RequestError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: the HTTP status.
        param: the field that is wrong, if it is one.
        code: a word that programs can compare.
        headers: of the response.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        kind = "authentication_error" if self.status == HTTPStatus.UNAUTHORIZED else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def messages_body(self) -> dict[str, Any]:
        """The JSON body in the form of Anthropic's API."""
        other = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
        error: dict[str, Any] = {"type": _KINDS.get(HTTPStatus(self.status), other), "message": self.message}
        if self.code == UNSUPPORTED_THREAD:
            error["details"] = {"error_code": self.code, "unsupported": [self.param]}
        return {"type": "error", "error": error}

    def response(self, path: str) -> Response:
        """The answer to a client of this endpoint."""
        body = self.messages_body if path.startswith("/v1/messages") else self.body
        return JSON(body, self.status, self.headers)


class JSON(Response):
    """A JSON response; text that UTF-8 cannot encode, such as a lone surrogate, is escaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The document as bytes."""
        return in_utf8(json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def in_utf8(text: str) -> bytes:
    """Encodes JSON text in UTF-8; a lone surrogate becomes an escape."""
    return text.encode("utf-8", "backslashreplace")


def as_request_error(error: BaseException) -> RequestError:
    """Converts an error for the client: with what the client can change, without internals of the server."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, OutOfMemory):
        return RequestError(_with_hint(error), code="out_of_memory", status=HTTPStatus.SERVICE_UNAVAILABLE)
    if isinstance(error, SpecError):
        return RequestError(_with_hint(error))
    if isinstance(error, ModelError | PardecError):
        return RequestError(_with_hint(error), code="model_error", status=HTTPStatus.INTERNAL_SERVER_ERROR)
    return RequestError(
        "the server failed; its log has the reason", code="internal", status=HTTPStatus.INTERNAL_SERVER_ERROR
    )


def _with_hint(error: PardecError) -> str:
    return f"{error.message}: {error.hint}" if error.hint else error.message
