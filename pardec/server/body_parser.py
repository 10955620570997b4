"""The costly part of reading a request, which needs no weights: parsing, tokenizing, automata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pardec.models.errors import SpecError
from pardec.models.files.json_text import unique_dict

from ..requests.prompts import ContextError, encode, encode_plain
from ..requests.settings import MAX_NEW_TOKENS, Settings
from ..requests.structured.request import Structure, structure
from ..requests.structured.vocabulary import Vocabulary
from ..requests.tools import tools_of
from .errors import RequestError
from .fields import invalid, refusal
from .schemas import Body, ChatBody, ChooseBody, CompletionBody, TextBody

if TYPE_CHECKING:
    from ..api import Model

WALL = 4  # times the processor's time that a request may take on the clock
DEFAULT_ANSWER = 1024  # most tokens of an autoregressive answer where neither the request nor the server bounds it
_DEEPEST = 200  # levels of arrays and objects within each other
_OF_STRUCTURE = ("max_new_tokens", "stop_ids", "response_format")


@dataclass(eq=False)
class ParserConfig:
    """The part of LanguageModel's interface that parsing needs."""

    name: str
    tokenizer: Any
    vocab_size: int
    decoding_config: Any
    max_positions: int | None
    limit: int | None
    defaults: Mapping[str, Any]  # arguments of `generate` that reading depends on
    longest_row: int | None  # tokens that the server takes
    most_rows: int

    @staticmethod
    def of(
        model: Model, defaults: Mapping[str, Any], *, longest_row: int | None, most_rows: int
    ) -> ParserConfig | None:
        """None for an image model, whose requests have no costly part."""
        if model.imaging is not None:
            return None
        network = model.language_model
        own = {name: value for name, value in defaults.items() if name in _OF_STRUCTURE}
        return ParserConfig(
            network.name,
            network.tokenizer,
            network.vocab_size,
            network.decoding_config,
            network.max_positions,
            network.limit,
            own,
            longest_row,
            most_rows,
        )

    @cached_property
    def most_characters(self) -> int | None:
        """The length in characters of the longest text that can fit in the context; None if unbounded."""
        limit = min(filter(None, (self.max_positions, self.limit, self.longest_row)), default=None)
        if limit is None or self.tokenizer is None:
            return None
        return limit * max(map(len, self.tokenizer.get_vocab()), default=1)

    def warm(self) -> None:
        """Prepares the data that every request with a schema needs."""
        if self.tokenizer is not None:
            with suppress(SpecError):  # it is raised where a request needs it
                Vocabulary.of(self.tokenizer, self.vocab_size)


@dataclass(frozen=True)
class ParsedBody:
    """A request after the costly part.

    Attributes:
        body: checked.
        ids: of its prompts, where they have been tokenized.
        structure: the compiled schema, for a masked model.
    """

    body: Any
    ids: list[list[int]] | None = None
    structure: Structure | None = None


def parse_body(data: bytes, schema: type[Body]) -> Body:
    """The body of a request. Raises RequestError."""
    try:
        document = json.loads(data, parse_constant=_no_constant, object_pairs_hook=unique_dict)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"the body is not JSON: {reason}", code="invalid_json") from None
    _check(document)
    try:
        return schema.model_validate(document).as_text()
    except ValidationError as error:
        raise invalid(error, document, schema) from None


def parse_request(config: ParserConfig, data: bytes, schema: type[Body]) -> ParsedBody:
    """Parses a body, tokenizes its prompts and compiles its schema. Raises RequestError."""
    body = parse_body(data, schema)
    if not isinstance(body, TextBody):
        return ParsedBody(body)
    try:
        check_characters(config, body)
        ids, structured = prompt_ids(config, body), None
        if isinstance(body, ChatBody) and body.tools:
            _compile_tools(config, body)
        if body.response_format is not None and body.response_format.get("type") != "text":
            structured = _structure(config, body)
    except SpecError as error:
        raise refusal(error, body) from None
    return ParsedBody(body, ids, structured if structured is not None and structured.template is not None else None)


def check_characters(config: ParserConfig, body: TextBody | ChooseBody) -> None:
    """Refuses texts that are too long for the context, before they are tokenized. Raises ContextError."""
    most = config.most_characters
    if most is None:
        return
    longest = max(_lengths(body), default=0)
    if longest > most:
        raise ContextError(
            f"a text of {longest} characters does not fit in the context of {config.name}, which is {most} at most",
            hint="shorten the prompt",
        )


def _lengths(body: TextBody | ChooseBody) -> Iterable[int]:
    """The characters of each prompt."""
    if isinstance(body, ChooseBody) and body.messages is not None:
        yield sum(len(message.text) for message in body.messages)
    if isinstance(body, ChatBody):
        yield sum(len(message.text) for message in body.messages) + (len(json.dumps(body.tools)) if body.tools else 0)
    elif isinstance(body, CompletionBody | ChooseBody):
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or ()
        yield from (len(text) for text in texts if isinstance(text, str))


def rows_of(body: TextBody | ChooseBody) -> int:
    """The number of prompts."""
    prompt: Any = getattr(body, "prompt", None)
    return len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1


def check_rows(count: int, most: int) -> None:
    """Refuses a request of more rows than the server takes."""
    if count > most:
        message = f"the request has {count} rows, prompts times n, and the most is {most}"
        raise RequestError(message, param="n", code="too_many_rows")


def prompt_ids(config: Any, body: TextBody) -> list[list[int]]:
    """The tokens of each prompt. Raises SpecError for those that the context has no room for."""
    check_rows(rows_of(body) * (body.n or 1), config.most_rows)
    default = config.defaults.get("max_new_tokens", MAX_NEW_TOKENS) if config.decoding_config.masked else 1
    most = default if body.max_tokens is None else body.max_tokens
    if isinstance(body, ChatBody):
        most = body.max_completion_tokens or most
        prompt: Any = [message.document for message in body.messages]
        settings = Settings.of(tool_arguments(body))
        tools = settings.tools if settings.tool_choice != "none" else None
        rows = encode(config, prompt, None, None, most, tools=tools, variables=body.chat_template_kwargs)
    else:
        assert isinstance(body, CompletionBody), "the other form"
        prompt = body.prompt
        if not isinstance(prompt, str) and not isinstance(prompt[0], str):
            rows = encode(config, None, prompt if isinstance(prompt[0], list) else [prompt], None, most)
        elif body.add_special_tokens is False:
            rows = encode(config, None, encode_plain(config, prompt), None, most)
        else:
            rows = encode(config, prompt, None, None, most)
    return [row.prompt.tolist() for row in rows]


def _structure(config: Any, body: TextBody) -> Structure | None:
    most = body.max_tokens
    if isinstance(body, ChatBody):
        most = body.max_completion_tokens or most
    lengths = {} if config.decoding_config.masked else {"max_new_tokens": DEFAULT_ANSWER}
    arguments = {**lengths, **config.defaults, "response_format": body.response_format}
    arguments |= {} if most is None else {"max_new_tokens": most}
    return structure(config, Settings.of(arguments), 1, config.decoding_config.eos_ids)


def tool_arguments(body: TextBody) -> dict[str, Any]:
    """The arguments of a request that are about tools."""
    if not isinstance(body, ChatBody):
        return {}
    each = {name: getattr(body, name) for name in ("tools", "tool_choice", "parallel_tool_calls")}
    return {name: value for name, value in each.items() if value is not None and value != []}


def _compile_tools(config: Any, body: ChatBody) -> None:
    """Reads the schemas of tools as the main process will, so that costly ones end this process and not that one."""
    most = body.max_completion_tokens or body.max_tokens or config.defaults.get("max_new_tokens", DEFAULT_ANSWER)
    arguments = {**tool_arguments(body), "max_new_tokens": most}
    settings = Settings.of(arguments | ({} if body.template is None else {"template": body.template}))
    structure(config, settings, 1, config.decoding_config.eos_ids, tools_of(config, settings))


def _check(document: Any) -> None:
    """Refuses values that are nested too deeply, and text that is not Unicode. Raises RequestError."""
    level: list[tuple[Any, str]] = [(document, "")]
    for _ in range(_DEEPEST):
        inner: list[tuple[Any, str]] = []
        for value, field in level:
            if isinstance(value, dict):
                for name, item in value.items():
                    _check_text(name, field or name)
                    if isinstance(item, str):
                        _check_text(item, field or name)
                    elif isinstance(item, dict | list):
                        inner.append((item, field or name))
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, str):
                        _check_text(item, field)
                    elif isinstance(item, dict | list):
                        inner.append((item, field))
        level = inner
        if not level:
            return
    field = level[0][1]
    raise RequestError(f"{field or 'the body'} is nested more than {_DEEPEST} levels deep", param=field or None)


def _check_text(text: str, field: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{field or 'the body'} holds a lone surrogate, {text[error.start]!a}"
        raise RequestError(message, param=field or None) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
