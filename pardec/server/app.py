"""The application: its endpoints and what all of them share."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ..version import __version__
from .answers import TextAnswer, image_answer
from .echo import echoes
from .errors import JSON, NO_SUCH_MODEL, RequestError
from .fields import invalid, named
from .guard import Guard
from .handling import Decoding, TextStream, monotonic_deadline, too_long, unless_gone
from .limits import Limits
from .listening import RowListener, Started, StreamListener, Update
from .metrics import Metrics
from .reading import Reader, TextRequest
from .schemas import Body, ChatBody, CompletionBody, ImageBody, TextBody
from .worker import Worker

if TYPE_CHECKING:
    from ..api import Model
    from ..serving.queue import QueuedRow

B = TypeVar("B", bound=Body)

WAITED = "X-Pardec-Waited"  # why a request's rows waited for a batch to end


def create_app(
    model: Model,
    *,
    name: str | None = None,
    api_key: str | None = None,
    limits: Limits | None = None,
    **defaults: Any,
) -> FastAPI:
    """An ASGI application that serves `model`; any ASGI server can run it, in one process.

    Args:
        model: as `pardec.load` gives it; nothing else may decode with it meanwhile.
        name: what clients call it, beside its own name.
        api_key: if given, requests need it as a bearer token.
        limits: what clients may ask for.
        defaults: arguments of `generate` for requests that leave them out, such as sampler and max_new_tokens.

    Raises SpecError for a default that `generate` does not take, or that is out of range.
    """
    limits = limits or Limits()
    server = Server(model, tuple(filter(None, (name, model.name))), defaults, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.stop)

    app = FastAPI(title="pardec", version=__version__, lifespan=lifespan, redirect_slashes=False)
    app.state.server = server
    app.add_middleware(Guard, metrics=server.metrics, limits=limits, api_key=api_key)
    app.add_exception_handler(HTTPException, _http_error)
    app.get("/health")(server.health)
    app.get("/metrics")(server.report)
    app.get("/v1/models")(server.models)
    app.get("/v1/models/{identifier:path}")(server.model_by_name)
    app.post("/v1/completions", **_documented(CompletionBody))(server.completions)
    app.post("/v1/chat/completions", **_documented(ChatBody))(server.chat_completions)
    app.post("/v1/images/generations", **_documented(ImageBody))(server.images)
    return app


class Server:
    """The endpoints of one model."""

    def __init__(self, model: Model, names: tuple[str, ...], defaults: Mapping[str, Any], limits: Limits) -> None:
        self.model, self.names, self.limits = model, names, limits
        self.reader = Reader(model, names, defaults, limits)
        self.worker = Worker(model, limits)
        self.metrics = Metrics(self.worker)
        self.created = int(time.time())
        self._preparing = ThreadPoolExecutor(1, "pardec-reader")  # tokenizers are used by one thread at a time

    def stop(self) -> None:
        """Ends the worker."""
        self.worker.stop(self.limits.grace)
        self._preparing.shutdown(wait=False, cancel_futures=True)

    # --- about the server ---

    async def health(self) -> Response:
        """Whether it takes requests."""
        alive = self.worker.alive
        status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
        scheduler = self.worker.scheduler
        state = {"status": "ok" if alive else "stopping", "model": self.names[0], "live": scheduler.live}
        return JSON({**state, "waiting": len(scheduler.waiting)}, status)

    async def report(self) -> Response:
        """Metrics in Prometheus' text form."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self) -> Response:
        """The models that clients can name."""
        return JSON({"object": "list", "data": [self._card(name) for name in dict.fromkeys(self.names)]})

    async def model_by_name(self, identifier: str) -> Response:
        """One of them."""
        if identifier not in self.names:
            raise RequestError(NO_SUCH_MODEL, f"there is no model {identifier!r}", code="model_not_found")
        return JSON(self._card(identifier))

    def _card(self, name: str) -> dict[str, Any]:
        kind = self.model.imaging.kind if self.model.imaging is not None else "text"
        length = None if self.model.family in ("continuous", "scales") else self.model.language_model.max_positions
        card = {"id": name, "object": "model", "created": self.created, "owned_by": "pardec"}
        return {**card, "family": self.model.family, "draws": kind, "max_model_len": length}

    # --- text ---

    async def completions(self, request: Request) -> Response:
        """Continues prompts."""
        return await self._text(request, await self._body(request, CompletionBody))

    async def chat_completions(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self._text(request, await self._body(request, ChatBody))

    async def _text(self, request: Request, body: TextBody) -> Response:
        with named(body):
            return await self._answer(request, body)

    async def _answer(self, request: Request, body: TextBody) -> Response:
        since, deadline = time.monotonic(), monotonic_deadline(self.limits.seconds)
        prepared: TextRequest = await self._prepare(request, lambda: self.reader.text(body), deadline)
        answer = TextAnswer(body, prepared, body.model or self.names[0], prepared.names)
        if body.stream:
            return await self._stream(request, answer, since, deadline)
        with Decoding(self.worker, prepared.rows, _listener, deadline) as decoding:
            results, waited = await unless_gone(request, decoding.finish())
        self.metrics.finished(results, answer.prompt_tokens)
        repeated = None
        if isinstance(body, CompletionBody) and body.echo:
            repeated = await asyncio.wrap_future(self.worker.call(lambda: echoes(self.model, prepared, body)))
        return JSON(answer.whole(results, repeated), headers=_waited(waited))

    async def _stream(self, request: Request, answer: TextAnswer, since: float, deadline: float) -> Response:
        options = answer.body.stream_options
        denoise = options is not None and bool(options.include_denoise)

        def listen(index: int, put: Callable[[Update], None], row: QueuedRow) -> RowListener:
            return StreamListener(index, put, self.model.row_text(row.call), denoise=denoise)

        decoding = Decoding(self.worker, answer.request.rows, listen, deadline)
        try:  # headers wait for the first row: they say whether it had to wait
            first = await unless_gone(request, decoding.next())
        except BaseException:
            decoding.close()
            raise
        headers = _waited(first.waited if isinstance(first, Started) else None)
        return TextStream(decoding, first, answer, self.metrics, since, headers)

    # --- images ---

    async def images(self, request: Request) -> Response:
        """Draws images."""
        body = await self._body(request, ImageBody)
        with named(body):
            return await self._draw(request, body)

    async def _draw(self, request: Request, body: ImageBody) -> Response:
        deadline = monotonic_deadline(self.limits.seconds)
        prepared = await self._prepare(request, lambda: self.reader.image(body), deadline)
        with Decoding(self.worker, prepared.rows, _listener, deadline) as decoding:
            results, waited = await unless_gone(request, decoding.finish())
        self.metrics.finished(results, 0)
        return JSON(await self._off_loop(lambda: image_answer(results, prepared.scale)), headers=_waited(waited))

    # --- shared ---

    async def _prepare(self, request: Request, function: Callable[[], Any], deadline: float) -> Any:
        """What reading a request gives, in the thread for it: tokens, and the automaton of a schema, take time."""
        try:
            async with asyncio.timeout_at(deadline):
                return await unless_gone(request, self._off_loop(function))
        except TimeoutError:
            raise too_long() from None

    async def _off_loop(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._preparing, function)

    async def _body(self, request: Request, schema: type[B]) -> B:
        """The request's body. Raises RequestError."""
        data = await request.body()
        try:
            document = json.loads(data, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise RequestError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {reason}", code="invalid_json") from None
        try:
            return schema.model_validate(document)
        except ValidationError as error:
            raise invalid(error, document) from None
        except RecursionError:
            raise RequestError(HTTPStatus.BAD_REQUEST, "the body is nested too deeply") from None


def _listener(index: int, put: Callable[[Update], None], _: QueuedRow) -> RowListener:
    return RowListener(index, put)


def _waited(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {WAITED: reason}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


async def _http_error(_: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException), "registered for it"
    allowed = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    return RequestError(error.status_code, f"{error.detail}: see /docs for the endpoints", headers=allowed).response()


def _documented(schema: type[Body]) -> dict[str, Any]:
    """The body in /docs; it is read by `_body`, so that every fault has one form."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}
