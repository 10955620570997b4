"""The ASGI application, its endpoints, and the code that they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from pardec.models.errors import SpecError

from ..cards import list_samplers
from ..choice import Form, choose, form_of, prompts_of
from ..requests.chat_template import applies, has_template
from ..version import __version__
from ..views.document import asset, document, fill, web
from . import messages, responses
from .answers import Echo, TextAnswer, echo, image_answer
from .body_parser import ParsedBody, ParserConfig, check_characters, check_rows, parse_body, prompt_ids, rows_of
from .errors import JSON, NO_SUCH_MODEL, RequestError
from .fields import named, renamed
from .guard import Guard, as_browsers_write
from .handling import Decoding, TextStream, monotonic_deadline, too_long, unless_gone
from .limits import Limits
from .listening import RowListener, StreamListener, Update
from .messages import Conversation, MessagesAnswer, MessagesBody
from .metrics import Metrics
from .parser_processes import ParserProcesses
from .request_parser import RequestParser, TextRequest
from .responses import ResponseAnswer, ResponseBody
from .schemas import Body, ChatBody, ChooseBody, CompletionBody, ImageBody, TextBody
from .worker import Worker

if TYPE_CHECKING:
    from ..api import Model
    from ..result import Result
    from ..serving.rows import QueuedRow

B = TypeVar("B", bound=Body)

SMALL = 2**14  # bytes of a body that is read at once
WAITED = "X-Pardec-Waited"  # why a request's rows waited for a batch to end


def create_app(
    model: Model,
    *,
    name: str | None = None,
    api_key: str | None = None,
    limits: Limits | None = None,
    origins: Sequence[str] = (),
    **defaults: Any,
) -> FastAPI:
    """An ASGI application that serves `model`; any ASGI server can run it, in one process.

    Args:
        model: as `pardec.load` gives it; nothing else may decode with it meanwhile.
        name: a second name of the model for clients.
        api_key: if given, requests need it as a bearer token.
        limits: the limits of requests.
        origins: those whose pages may use the server (CORS), as "https://my.app"; "*" is any.
        defaults: arguments of `generate` for requests that leave them out, such as sampler and max_new_tokens.

    Raises SpecError for a default that `generate` or the model does not take, or that is out of range, for an empty key
    or name, and for an origin that no browser sends.
    """
    if name is not None and not name.strip():
        raise SpecError("name is empty, and no client could request it", hint="give a name, or leave it out")
    if api_key is not None and not api_key.strip():
        raise SpecError("api_key is empty, and every request would pass", hint="give a key, or leave it out")
    origins = as_browsers_write(origins)
    limits = limits or Limits()
    server = Server(model, tuple(filter(None, (name, model.name))), defaults, limits, needs_key=api_key is not None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.stop)

    app = FastAPI(title="pardec", version=__version__, lifespan=lifespan, redirect_slashes=False)
    app.state.server = server
    app.add_middleware(Guard, metrics=server.metrics, limits=limits, api_key=api_key, origins=origins)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[WAITED],
        )
    app.add_exception_handler(HTTPException, _http_error)
    app.get("/", include_in_schema=False)(server.page)
    app.get("/health")(server.health)
    app.get("/metrics")(server.report)
    app.get("/v1/models")(server.models)
    app.get("/v1/models/{identifier:path}")(server.model_by_name)
    app.post("/v1/completions", **_documented(CompletionBody))(server.completions)
    app.post("/v1/chat/completions", **_documented(ChatBody))(server.chat_completions)
    app.post("/v1/responses", **_documented(ResponseBody))(server.responses)
    app.post("/v1/messages", **_documented(MessagesBody))(server.messages)
    app.post("/v1/messages/count_tokens", **_documented(Conversation))(server.count_tokens)
    app.post("/v1/choose", **_documented(ChooseBody))(server.choose)
    app.post("/v1/embeddings")(server.embeddings)
    app.post("/v1/images/generations", **_documented(ImageBody))(server.images)
    return app


class Server:
    """The endpoints of one model."""

    def __init__(
        self,
        model: Model,
        names: tuple[str, ...],
        defaults: Mapping[str, Any],
        limits: Limits,
        *,
        needs_key: bool = False,
    ) -> None:
        self.model, self.names, self.limits, self.needs_key = model, names, limits, needs_key
        self.request_parser = RequestParser(model, names, defaults, limits)
        config = ParserConfig.of(model, defaults, longest_row=limits.length, most_rows=limits.rows)
        self.parser_processes = None if config is None else ParserProcesses(config, limits.reading)
        self.worker = Worker(model, limits)
        self.metrics = Metrics(self.worker)
        self.created = int(time.time())
        self._preparing = ThreadPoolExecutor(1, "pardec-parser")  # tokenizers are used by one thread at a time

    def start(self) -> None:
        """Starts the worker."""
        self.worker.start()
        if self.parser_processes is not None:
            self.parser_processes.start()

    def stop(self) -> None:
        """Stops the worker."""
        if self.parser_processes is not None:
            self.parser_processes.stop()
        self.worker.stop(self.limits.grace)
        self._preparing.shutdown(wait=False, cancel_futures=True)

    # --- about the server ---

    async def page(self) -> Response:
        """A page on which two samplers race."""
        if self.model.imaging is not None:
            raise RequestError(
                f"{self.names[0]} draws images, and the page at / is for text", status=HTTPStatus.NOT_FOUND
            )
        return HTMLResponse(race_page(self.model, self.names[0], key=self.needs_key))

    async def health(self) -> Response:
        """Whether the server takes requests."""
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
        """One model by its name."""
        if identifier not in self.names:
            raise RequestError(f"there is no model {identifier!r}", code="model_not_found", status=NO_SUCH_MODEL)
        return JSON(self._card(identifier))

    def _card(self, name: str) -> dict[str, Any]:
        kind = self.model.imaging.kind if self.model.imaging is not None else "text"
        card = {"id": name, "object": "model", "created": self.created, "owned_by": "pardec"}
        return {**card, "family": self.model.family, "draws": kind, "max_model_len": self.model.network.max_positions}

    # --- text ---

    async def completions(self, request: Request) -> Response:
        """Continues prompts."""
        return await self._text(request, await self._body(request, CompletionBody))

    async def chat_completions(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self._text(request, await self._body(request, ChatBody))

    async def responses(self, request: Request) -> Response:
        """Answers an input, in the form of OpenAI's Responses API."""
        with renamed(responses.RENAMED):
            return await self._text(request, await self._body(request, ResponseBody), ResponseAnswer)

    async def messages(self, request: Request) -> Response:
        """Answers a conversation, in the form of Anthropic's API."""
        with renamed(messages.RENAMED):
            return await self._text(request, await self._body(request, MessagesBody), MessagesAnswer)

    async def count_tokens(self, request: Request) -> Response:
        """The tokens of a conversation, in the form of Anthropic's API."""
        parsed, deadline = await self._body(request, Conversation), monotonic_deadline(self.limits.seconds)
        if self.parser_processes is None:
            raise RequestError(f"{self.names[0]} draws images and has no conversations", param="model")
        self.request_parser.check_model(parsed.body)
        read = partial(prompt_ids, self.parser_processes.config, parsed.body)
        with named(parsed.body):
            ids = parsed.ids or await self._prepare(request, read, deadline)
        return JSON({"input_tokens": len(ids[0])})

    async def choose(self, request: Request) -> Response:
        """The probabilities of labels; see `Model.choose`."""
        body: ChooseBody = (await self._body(request, ChooseBody)).body
        with named(body):
            return await self._choose(request, body)

    async def _choose(self, request: Request, body: ChooseBody) -> Response:
        self.request_parser.check_model(body)
        network, deadline = self.model.language_model, monotonic_deadline(self.limits.seconds)
        if self.parser_processes is not None:
            check_characters(self.parser_processes.config, body)

        def read() -> tuple[list[list[int]], Form]:
            form = form_of(network, body.slots, body.answer)
            check_rows(rows_of(body) * form.rows[network.decoding_config.masked], self.limits.rows)
            conversation = None if body.messages is None else [message.document for message in body.messages]
            return prompts_of(network, body.prompt if conversation is None else conversation, None), form

        prompts, form = await self._prepare(request, read, deadline)
        choices = []
        for ids in prompts:  # others decode between them
            one = partial(choose, network, [ids], form)
            choices += await unless_gone(request, asyncio.wrap_future(self.worker.call(one)))
        usage = {"prompt_tokens": sum(map(len, prompts)), "total_tokens": sum(map(len, prompts))}
        data = [{"index": index, **asdict(choice)} for index, choice in enumerate(choices)]
        return JSON({"object": "choice.list", "model": body.model or self.names[0], "data": data, "usage": usage})

    async def embeddings(self) -> Response:
        """Refuses: no model here embeds texts."""
        message = f"/v1/embeddings is not served: {self.names[0]} decodes tokens and computes no embeddings of texts"
        raise RequestError(message, code="unsupported_endpoint")

    async def _text(self, request: Request, parsed: ParsedBody, kind: type[TextAnswer] = TextAnswer) -> Response:
        with named(parsed.body):
            return await self._answer(request, parsed, kind)

    async def _answer(self, request: Request, parsed: ParsedBody, kind: type[TextAnswer]) -> Response:
        body: TextBody = parsed.body
        since, deadline = time.monotonic(), monotonic_deadline(self.limits.seconds)
        prepared: TextRequest = await self._prepare(request, lambda: self.request_parser.text(parsed), deadline)
        answer = kind(body, prepared, body.model or self.names[0], prepared.names, self.model.tokenizer)
        if body.stream:
            return self._stream(request, answer, since, deadline)
        results: list[Result] = []
        waited: str | None = None
        repeated: list[Echo] | None = None
        if prepared.rows:
            with Decoding(self.worker, prepared.rows, _listener, deadline, _client(request)) as decoding:
                results, waited = await unless_gone(request, decoding.finish())
        self.metrics.finished(results, answer.prompt_tokens)
        if isinstance(body, CompletionBody) and body.echo:
            repeated = []
            for ids in prepared.prompts:  # others decode between them
                score = partial(echo, self.model, ids, prepared.logprobs, body.logprob_ids)
                repeated.append(await unless_gone(request, asyncio.wrap_future(self.worker.call(score))))
        return JSON(answer.whole(results, repeated), headers=_waited(waited))

    def _stream(self, request: Request, answer: TextAnswer, since: float, deadline: float) -> Response:
        options = answer.body.stream_options
        denoise = options is not None and bool(options.include_denoise)

        def listen(index: int, send: Callable[[Update], None], row: QueuedRow) -> RowListener:
            return StreamListener(index, send, self.model.row_text(row.call), denoise=denoise)

        decoding = Decoding(self.worker, answer.request.rows, listen, deadline, _client(request))
        return TextStream(decoding, answer, self.metrics, since)

    # --- images ---

    async def images(self, request: Request) -> Response:
        """Draws images."""
        body: ImageBody = (await self._body(request, ImageBody)).body
        with named(body):
            return await self._draw(request, body)

    async def _draw(self, request: Request, body: ImageBody) -> Response:
        deadline = monotonic_deadline(self.limits.seconds)
        prepared = await self._prepare(request, lambda: self.request_parser.image(body), deadline)
        with Decoding(self.worker, prepared.rows, _listener, deadline, _client(request)) as decoding:
            results, waited = await unless_gone(request, decoding.finish())
        self.metrics.finished(results, 0)
        return JSON(await self._off_loop(lambda: image_answer(results, prepared.scale)), headers=_waited(waited))

    # --- shared ---

    async def _prepare(self, request: Request, function: Callable[[], Any], deadline: float) -> Any:
        """Runs a slow part of reading a request in a separate thread, such as tokenizing or building automata."""
        try:
            async with asyncio.timeout_at(deadline):
                return await unless_gone(request, self._off_loop(function))
        except TimeoutError:
            raise too_long() from None

    async def _off_loop(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._preparing, function)

    async def _body(self, request: Request, schema: type[Body]) -> ParsedBody:
        """Reads the body; a separate process parses large bodies and schemas. Raises RequestError."""
        if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
            message = f"a body with Content-Encoding: {encoding} is not read: send it uncompressed"
            raise RequestError(message, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        data = await request.body()
        if self.parser_processes is None:
            return ParsedBody(await self._off_loop(lambda: parse_body(data, schema)))
        if len(data) <= SMALL:
            body: Any = parse_body(data, schema)
            costly = isinstance(body, TextBody) and (body.response_format or getattr(body, "tools", None))
            if not costly:
                if isinstance(body, TextBody):
                    with named(body):
                        check_characters(self.parser_processes.config, body)
                return ParsedBody(body)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await unless_gone(request, self.parser_processes.parse(_client(request), data, schema))
        except TimeoutError:
            raise too_long() from None


def _client(request: Request) -> str:
    """The sender of a request: its host and its key."""
    host = request.client.host if request.client is not None else ""
    return f"{host} {request.headers.get('authorization', '')}"


def _listener(index: int, send: Callable[[Update], None], _: QueuedRow) -> RowListener:
    return RowListener(index, send)


def _waited(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {WAITED: reason}


async def _http_error(request: Request, error: Exception) -> Response:
    """The error for unknown paths and methods."""
    assert isinstance(error, HTTPException), "registered for it"
    allowed = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    answer = RequestError(f"{error.detail}: see /docs for the endpoints", status=error.status_code, headers=allowed)
    return answer.response(request.url.path)


def _documented(schema: type[Body]) -> dict[str, Any]:
    """Documents the body in /docs; `_body` reads it, so that all errors have the same form."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


_PROMPT = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
_FASTER = {"masked": "threshold", "ar": "lookup"}  # the page's second sampler; needs no other model


def race_page(model: Model, name: str, *, key: bool) -> str:
    """The page at `/` for a model of text: a prompt, two samplers, and their canvases forward by forward.

    Args:
        name: the model's name for clients.
        key: whether requests need a key, for which the page then has a field.
    """
    stages = ("select", "draft")
    names = [card.name for card in list_samplers() if card.family == model.family and card.stage in stages]
    body = fill(
        asset("pardec.views", "web/race.html"),
        model=escape(name),
        prompt=_PROMPT,
        one="sequential",
        two=_FASTER[model.family],
        chat="" if has_template(model) else "hidden",
        checked="checked" if applies(model, None) else "",
        key="" if key else "hidden",
        samplers="".join(f'<option value="{escape(each, quote=True)}">' for each in names),
    )
    styles = web("page.css", "replay.css", "race.css")
    return document(f"{name}: two samplers", body, styles=styles, scripts=web("page.js", "race.js"), connects=True)
