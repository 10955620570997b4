"""Parses a request's body into rows that the scheduler decodes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.samplers.spec import parse

from ..requests.images import size_and_scale, with_defaults
from ..requests.prompts import encode, encode_plain
from ..requests.settings import FILLING, MAX_NEW_TOKENS, Settings, own_names
from ..requests.structured.request import mark_tools, remember
from ..requests.tools import shown
from ..serving.queue import queued_rows
from ..serving.rows import QueuedRow
from .body_parser import DEFAULT_ANSWER, ParsedBody, check_rows, rows_of, tool_arguments
from .errors import NO_SUCH_MODEL, RequestError
from .fields import CONTEXT
from .schemas import NUMBERS, ChatBody, ChooseBody, CompletionBody, ImageBody, Sampled, TextBody
from .token_names import TokenNames

if TYPE_CHECKING:
    from ..api import Model
    from .limits import Limits

_MOST_TEXTS = 4096  # texts in `allowed`
_MOST_CAPTION = 2**14  # characters
_WITHIN = ("min_new_tokens", "block_length")  # numbers that may not be larger than max_new_tokens
_ID = re.compile("0|[1-9][0-9]{0,8}")  # a number as a key: "05" would be a second name of 5
MOST_LOGPROBS = 20  # likeliest tokens of a position, as in OpenAI's API


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A checked request for text.

    Attributes:
        rows: prompts times samples, the samples of a prompt one after the other; none where nothing is to be decoded.
        samples: of each prompt.
        prompts: the ids of each prompt.
    """

    rows: list[QueuedRow]
    samples: int
    prompts: list[list[int]]
    logprobs: int | None
    names: TokenNames | None = None

    @property
    def count(self) -> int:
        """The number of answers."""
        return len(self.prompts) * self.samples


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """A checked request for images; `scale` is the factor by which to enlarge them."""

    rows: list[QueuedRow]
    scale: int


class RequestParser:
    """Reads the requests of one server. Raises RequestError or SpecError for requests that it cannot serve."""

    def __init__(self, model: Model, names: tuple[str, ...], defaults: Mapping[str, Any], limits: Limits) -> None:
        """`names` are the model names that clients may use, `defaults` arguments of `generate`."""
        self.model, self.names, self.defaults, self.limits = model, names, dict(defaults), limits
        Settings.of(self.defaults).check_taken(model.name, model.driver.takes)

    # --- text ---

    def text(self, parsed: ParsedBody) -> TextRequest:
        """A completion or a chat completion."""
        body: TextBody = parsed.body
        self.check_model(body)
        if self.model.imaging is not None:
            raise RequestError(f"{self.model.name} draws images: post to /v1/images/generations", param="model")
        if isinstance(body, CompletionBody) and body.max_tokens == 0:
            return self._prompts_alone(body, parsed)
        lengths = self._lengths(body)
        own = {**self._sampling(body), **self._prompt(parsed), **lengths, **tool_arguments(body)}
        arguments = {**self._defaults(body), **own}
        if parsed.ids is not None:
            mark_tools(arguments.get("tools", ()))
        if "max_new_tokens" not in lengths and self.model.family == "ar":
            arguments |= self._to_the_end(arguments)
        new = arguments.get("max_new_tokens", MAX_NEW_TOKENS)
        shorter = [name for name in _WITHIN if name not in own and (arguments.get(name) or 0) > new]
        arguments |= dict.fromkeys(shorter, new)  # defaults that are meant for longer answers
        arguments |= self._endings(body)
        if isinstance(body, CompletionBody) and body.echo:
            self._check_echo(body)
        if body.response_format is not None and body.response_format.get("type") != "text":
            arguments["response_format"] = body.response_format
            budget = arguments.get("max_new_tokens", MAX_NEW_TOKENS)
            remember(self.model.language_model, body.response_format, budget, parsed.structure)
        if body.allowed is not None:
            arguments["allowed"] = _integer_keys(body.allowed)
            texts = _texts_in(body.allowed)
            if texts > _MOST_TEXTS:
                message = f"allowed has {texts} texts, and the most is {_MOST_TEXTS}: give token ids"
                raise RequestError(message, param="allowed")
        if body.logit_bias:
            arguments["logit_bias"] = _whole_keys("logit_bias", body.logit_bias, "{}, which is not the id of a token")
        logprobs = _logprobs(body)
        if logprobs is not None:
            arguments |= {"logprobs": logprobs, "logprob_ids": body.logprob_ids}
        samples = body.n or int(self.defaults.get("num_return_sequences", 1))
        if samples > 1:
            arguments = {"temperature": 1.0, **arguments}  # OpenAI's default
        arguments["num_return_sequences"] = samples
        check_rows(rows_of(body) * samples, self.limits.rows)
        call = self.model.prepare(**arguments)
        self._check_lengths(body, call.lengths)
        settings = Settings.of({name: value for name, value in arguments.items() if name != "prompt"})
        rows = queued_rows(self.model, call, settings)
        starts = zip(call.request.canvases, call.prompts, strict=True)
        prompts = [canvas[:start].tolist() for canvas, start in starts][::samples]
        shown = logprobs is not None or (body.stream_options is not None and body.stream_options.include_denoise)
        return TextRequest(rows, samples, prompts, logprobs, self.token_names if shown else None)

    def _defaults(self, body: TextBody) -> dict[str, Any]:
        """The server's defaults, without those that cannot be combined with what the request asks for."""
        form, fixed = body.response_format, set[str]()
        if (form is not None and form.get("type") != "text") or tool_arguments(body).get("tools"):
            fixed = set(FILLING)
        elif body.template is not None:
            fixed = {"stop"}
        return {name: value for name, value in self.defaults.items() if name not in fixed}

    def _prompts_alone(self, body: CompletionBody, parsed: ParsedBody) -> TextRequest:
        """A request for no new tokens, which repeats and scores its prompts."""
        for name in ("stream", "template", "allowed", "response_format", "min_tokens"):
            if getattr(body, name):
                raise RequestError(f"{name} cannot be combined with max_tokens=0, which writes nothing", param=name)
        if body.echo:
            self._check_echo(body)
        samples, logprobs = body.n or 1, _logprobs(body)
        check_rows(rows_of(body) * samples, self.limits.rows)
        given = self._prompt(parsed)
        rows = encode(self.model.language_model, given.get("prompt"), given.get("input_ids"), None, 0)
        prompts = [row.prompt.tolist() for row in rows]
        self._check_lengths(body, [len(prompt) for prompt in prompts])
        short = {"prompt": prompts[0][:1], "max_tokens": None, "n": 1}
        self.text(ParsedBody(body.model_copy(update=short)))  # checks the other fields
        return TextRequest([], samples, prompts, logprobs, self.token_names if logprobs is not None else None)

    @cached_property
    def token_names(self) -> TokenNames:
        """The names of the model's tokens, read on first use."""
        return TokenNames(self.model.tokenizer, self.model.language_model.vocab_size)

    def _prompt(self, parsed: ParsedBody) -> dict[str, Any]:
        body = parsed.body
        if parsed.ids is not None:
            return {"input_ids": parsed.ids}
        if isinstance(body, ChatBody):
            messages = [message.document for message in body.messages]
            return {"prompt": messages, "chat_template_kwargs": body.chat_template_kwargs}
        assert isinstance(body, CompletionBody), "the other form"
        prompt: Any = body.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], str):
            if body.add_special_tokens is False:
                return {"input_ids": encode_plain(self.model.language_model, prompt)}
            return {"prompt": prompt}
        return {"input_ids": prompt if isinstance(prompt[0], list) else [prompt]}

    def _lengths(self, body: TextBody) -> dict[str, Any]:
        most = body.max_tokens
        if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
            if most not in (None, body.max_completion_tokens):
                message = "max_tokens and max_completion_tokens differ: leave one of them out"
                raise RequestError(message, param="max_tokens")
            most = body.max_completion_tokens
        values = {
            "max_new_tokens": most,
            "template": body.template,
        }
        if isinstance(body, CompletionBody) and body.best_of not in (None, body.n or 1):
            raise RequestError("best_of has to equal n: answers are not ranked", param="best_of")
        return {name: value for name, value in values.items() if value is not None}

    def _to_the_end(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt as ids, and as many new tokens as the context and the server have room for after it."""
        model, bound = self.model.language_model, int(self.defaults.get("max_new_tokens", DEFAULT_ANSWER))
        prompt, ids = arguments.get("prompt"), arguments.get("input_ids")
        tools = shown(prompt, arguments.get("tools"), arguments.get("tool_choice"))
        rows = encode(model, prompt, ids, None, 1, tools=tools, variables=arguments.get("chat_template_kwargs"))
        longest = max(len(row.prompt) for row in rows)
        context = min(filter(None, (model.max_positions, model.limit, self.limits.length)), default=longest + bound)
        new = max(1, min(bound, context - longest))
        as_ids = {"prompt": None, "chat_template_kwargs": None, "input_ids": [row.prompt for row in rows]}
        return {**as_ids, "max_new_tokens": new}

    def _check_echo(self, body: CompletionBody) -> None:
        if body.stream:
            raise RequestError("echo cannot be streamed", param="echo")
        if _logprobs(body) is not None and self.model.family != "ar":
            message = (
                f"echo cannot be combined with logprobs: {self.model.name} is masked and gives prompts no probability"
            )
            raise RequestError(message, param="echo")

    def _endings(self, body: TextBody) -> dict[str, Any]:
        stop = [body.stop] if isinstance(body.stop, str) else [text for text in body.stop or () if text is not None]
        values: dict[str, Any] = {} if body.stop is None else {"stop": stop or None}
        if body.ignore_eos:
            values["stop_ids"] = list(body.stop_token_ids or ())
        elif body.stop_token_ids:
            values["stop_ids"] = [*self.model.language_model.decoding_config.eos_ids, *body.stop_token_ids]
        return values

    # --- images ---

    def image(self, body: ImageBody) -> ImageRequest:
        """Reads a request for images of a caption or a class."""
        self.check_model(body)
        imaging = self.model.imaging
        if imaging is None:
            raise RequestError(f"{self.model.name} writes text: post to /v1/completions", param="model")
        for name in ("prompt", "negative_prompt"):
            if len(getattr(body, name) or "") > _MOST_CAPTION:
                raise RequestError(f"{name} has more than {_MOST_CAPTION} characters: shorten it", param=name)
        arguments = {**self.defaults, **self._sampling(body)}
        if body.negative_prompt is not None:
            arguments["negative_prompt"] = body.negative_prompt
        if imaging.kind == "class":
            arguments["label"] = _label(body, imaging.classes)
        elif body.label is not None:
            message = f"label is a class, and {self.model.name} draws captions: leave label out"
            raise RequestError(message, param="label")
        elif body.prompt is not None:
            arguments["prompt"] = body.prompt
        else:
            raise RequestError("prompt is missing: describe the image", param="prompt")
        if not imaging.can_decode:
            raise RequestError(f"{self.model.name} has no decoder to images", param="model")
        count = body.n or 1
        check_rows(count, self.limits.rows)
        width, height = _size(body.size)
        try:
            dimensions, scale = size_and_scale(self.model.name, imaging, height, width)
        except SpecError as error:
            message = re.sub(r"^(height|width)=\d+", f"size={body.size}", error.message)
            hint = re.sub("leave (height|width|one) out", "leave size out", error.hint or "")
            raise RequestError(f"{message}: {hint}", param="size") from error
        arguments = {**with_defaults(imaging, arguments), "num_images": count}
        arguments |= {} if dimensions is None else {"size": dimensions}
        call = self.model.prepare(**arguments)
        settings = Settings.of({name: value for name, value in arguments.items() if name != "prompt"})
        return ImageRequest(queued_rows(self.model, call, settings), scale)

    # --- both ---

    def check_model(self, body: Sampled | ChooseBody) -> None:
        """Refuses the name of another model."""
        if body.model is not None and body.model not in self.names:
            message = f"there is no model {body.model!r}; this server has {self.names[0]!r}"
            raise RequestError(message, param="model", code="model_not_found", status=NO_SUCH_MODEL)

    def _sampling(self, body: Sampled) -> dict[str, Any]:
        numbers = ((each, getattr(body, field, None)) for field, each in NUMBERS.items())
        # a value that is off elsewhere, such as top_k=-1, turns a default of the server or the checkpoint off
        values = {
            each.name: None if value in each.off_elsewhere else value for each, value in numbers if value is not None
        }
        if (sample := getattr(body, "do_sample", None)) is not None:
            default = (
                {"temperature": self.defaults["temperature"]} if sample and self.defaults.get("temperature") else {}
            )
            values = own_names({**default, **values, "do_sample": sample})
        if body.sampler is not None:
            check_sampler(body.sampler, self.defaults.get("sampler"))
            values["sampler"] = body.sampler
        seed = body.seed if body.seed is not None else self.defaults.get("seed")
        return {**values, "seed": secrets.randbits(63) if seed is None else seed}

    def _check_lengths(self, body: TextBody, lengths: list[int]) -> None:
        limit = self.limits.length
        if limit is not None and max(lengths) > limit:
            message = f"a row has {max(lengths)} tokens, prompt and answer, and this server takes {limit} at most"
            param = "messages" if isinstance(body, ChatBody) else "prompt"
            raise RequestError(message, param=param, code=CONTEXT)


def check_sampler(text: str, default: Any) -> None:
    """Refuses a spec that names files or hub models, except the server's own: clients may not load anything.

    Raises SpecError.
    """
    if text == default or text.startswith("preset:"):
        return
    for part in parse(text).parts:
        for name, value in part.params:
            if re.search(r"[/\\~]", value) or value.startswith(".") or (len(value) < 256 and Path(value).exists()):
                raise SpecError(
                    f"{part.name}:{name}={value} names a file or a model of a hub, and requests may only name "
                    "embedded ones",
                    hint="start the server with this sampler (-s), and leave it out of the request",
                )


def _logprobs(body: TextBody) -> int | None:
    """How many of the likeliest tokens are reported; None if no log-probabilities are reported.

    `logprob_ids` alone asks for those of the tokens and of these ids, as in Python.
    """
    if isinstance(body, ChatBody):
        lacking = ["top_logprobs"] if body.top_logprobs and not body.logprobs else []
        lacking += ["logprob_ids"] if body.logprob_ids and body.logprobs is False else []
        if lacking:
            raise RequestError(f"{lacking[0]} needs logprobs=true", param=lacking[0])
        count = (body.top_logprobs or 0) if body.logprobs else None
    else:
        assert isinstance(body, CompletionBody), "the other form"
        count = body.logprobs
    if count is None and body.logprob_ids is not None:
        count = 0
    if count is not None and count > MOST_LOGPROBS:
        name = "top_logprobs" if isinstance(body, ChatBody) else "logprobs"
        raise RequestError(f"{name} must be at most {MOST_LOGPROBS}, got {count}", param=name)
    return count


def _texts_in(value: Any) -> int:
    """The number of texts in `allowed`."""
    if isinstance(value, str):
        return 1
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_texts_in, items))


def _integer_keys(value: Any) -> Any:
    """`allowed` from JSON, with the keys of every object converted to whole numbers."""
    if isinstance(value, list):
        return [_integer_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    return _whole_keys(
        "allowed",
        {key: _integer_keys(item) for key, item in value.items()},
        "the index {}, which is not a whole number",
    )


def _whole_keys(name: str, value: Mapping[str, Any], fault: str) -> dict[int, Any]:
    """An object from JSON with whole numbers as keys; `fault` says what another key, {}, is."""
    wrong = next((key for key in value if not _ID.fullmatch(key)), None)
    if wrong is not None:
        raise RequestError(f"{name} has {fault.format(repr(wrong))}", param=name)
    return {int(key): item for key, item in value.items()}


def _label(body: ImageBody, classes: int) -> int:
    """The class that a request's prompt names, by label or by number."""
    prompt, named = body.prompt, None
    if prompt is not None:
        if not re.fullmatch(r"-?[0-9]{1,9}", prompt.strip()):
            message = f"this model draws classes: label, or a prompt that is a whole number, is one of 0..{classes - 1}"
            raise RequestError(message, param="prompt")
        named = int(prompt)
    if body.label is None and named is None:
        raise RequestError(f"no class is given: label is one of 0..{classes - 1}", param="label")
    if body.label is not None and named not in (None, body.label):
        message = f"prompt names the class {named}, and label is {body.label}: leave one of them out"
        raise RequestError(message, param="prompt")
    return body.label if body.label is not None else int(named or 0)


def _size(size: str | None) -> tuple[int | None, int | None]:
    """Width and height of "256x256"; None for the model's own."""
    if size is None or size == "auto":
        return None, None
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
    if match is None:
        raise RequestError(f'size must be "WIDTHxHEIGHT", as "256x256", got {size!r}', param="size")
    return int(match[1]), int(match[2])
