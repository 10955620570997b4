"""The answers to requests, in the form of OpenAI's API."""

from __future__ import annotations

import base64
import io
import json
import math
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pardec.samplers.logprobs import TokenLogprobs, top_ids

from ..requests.images import enlarged
from ..result import Result
from ..version import __version__
from .errors import RequestError, in_utf8
from .listening import Advanced
from .schemas import ChatBody, TextBody
from .token_names import Offsets, TokenNames

if TYPE_CHECKING:
    from ..api import Model
    from ..requests.tools import Tools
    from .request_parser import TextRequest


@dataclass
class TextAnswer:
    """Writes the answer to one request for text, whole or in chunks."""

    body: TextBody
    request: TextRequest
    name: str  # the model's name
    names: TokenNames | None  # names of its tokens; None if neither log-probabilities nor canvases are requested
    tokenizer: Any
    identifier: str = field(init=False)
    created: int = field(init=False)

    def __post_init__(self) -> None:
        self.chat = isinstance(self.body, ChatBody)
        self.identifier = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._begun: set[int] = set()
        self._offsets: dict[int, Offsets] = {}  # per streamed row
        self._sent: dict[int, tuple[str, int]] = {}  # per streamed row, the text and the number of tokens sent
        self._counted: dict[int, int] = {}  # per streamed row, the tokens that its chunks have shown
        self._denoised: dict[int, int] = {}  # per streamed row, the forwards of the last canvas sent
        self._held: dict[int, list[Advanced]] = {}  # per streamed row, updates that may belong to a call
        self.tools: Tools | None = getattr(self.request.rows[0].call, "tools", None) if self.request.rows else None

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the prompts, each prompt counted once."""
        return sum(map(len, self.request.prompts))

    # --- whole ---

    def whole(self, results: Sequence[Result], echoes: Sequence[Echo] | None = None) -> dict[str, Any]:
        """The answer to a request without a stream; `echoes` are the prompts, repeated before the answers."""
        choices = [self._choice(index, result, echoes) for index, result in enumerate(results)]
        choices = choices or [self._prompt_alone(index, echoes) for index in range(self.request.count)]
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": self.usage(results)}

    def _choice(self, index: int, result: Result, echoes: Sequence[Echo] | None) -> dict[str, Any]:
        text, tokens, values = text_of(result), result.tokens[0], token_logprobs(result)
        content, calls = self._calls(result)
        if echoes is not None:
            echo = echoes[index // self.request.samples]
            text, tokens = echo.before(text, tokens), [*echo.tokens, *tokens]
            values = _joined(echo.logprobs, values)
        logprobs = self._logprobs(tokens, values, len(text))
        reason = "tool_calls" if calls else finish_reason(result)
        choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": logprobs}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": content or None if calls else text, "refusal": None}
            choice["message"] |= {"tool_calls": calls} if calls else {}
        else:
            choice["text"] = text
        if self.body.return_token_ids:
            choice |= {
                "token_ids": result.tokens[0],
                "step_map": result.step_map[0].tolist(),
                "seed": result.seeds[0],
                "prompt_token_ids": self.request.prompts[index // self.request.samples],
            }
        return choice

    def _prompt_alone(self, index: int, echoes: Sequence[Echo] | None) -> dict[str, Any]:
        """The choice of a request for no new tokens."""
        prompt = self.request.prompts[index // self.request.samples]
        echo = Echo([], lambda _: "", TokenLogprobs.empty(0))
        if echoes is not None:
            echo = echoes[index // self.request.samples]
        text = echo.before("", [])
        logprobs = self._logprobs(echo.tokens, echo.logprobs, len(text))
        choice: dict[str, Any] = {"index": index, "finish_reason": "length", "logprobs": logprobs, "text": text}
        return choice | ({"token_ids": [], "prompt_token_ids": prompt} if self.body.return_token_ids else {})

    def _calls(self, result: Result) -> tuple[str, list[dict[str, Any]]]:
        """The text before the calls of an answer, and the calls."""
        if self.tools is None:
            return text_of(result), []
        content, calls = self.tools.form.read(self._raw(result.tokens[0]))
        if not calls:
            return text_of(result), []
        each = [{"name": name, "arguments": arguments} for name, arguments in calls]
        return content, [{"id": self._call_id(), "type": "function", "function": one} for one in each]

    def _raw(self, tokens: Sequence[int]) -> str:
        """Tokens as text, with special tokens, which may begin a call."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))

    def _call_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """The counts of tokens, end tokens included, and the forwards that the rows took part in."""
        prompt, completion = self.prompt_tokens, sum(len(tokens) for result in results for tokens in result.tokens)
        drafted = sum(map(sum, (row for result in results for row in result.trace.drafted)))
        accepted = sum(map(sum, (row for result in results for row in result.trace.accepted)))
        details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "forwards": sum(sum(result.nfe) for result in results),
            **({"completion_tokens_details": details, "acceptance_rate": accepted / drafted} if drafted else {}),
            "prompt_tokens_details": {"cached_tokens": sum(sum(result.reused) for result in results)},
        }

    # --- events of a stream ---

    def opened(self) -> list[bytes]:
        """The events before the text."""
        return []

    def advanced(self, update: Advanced) -> list[bytes]:
        """The events of new text."""
        return [event(self.chunk(each)) for each in self._released(update)]

    def _released(self, update: Advanced) -> list[Advanced]:
        """The updates that can be sent; text that may begin a call waits until it cannot, or until the row ends."""
        sent, count = self._sent.get(update.index, ("", 0))
        held = [*self._held.pop(update.index, []), update]
        text = sent + "".join(each.text for each in held)
        if self.tools is not None and (self.tools.form.is_special or self.tools.form.may_begin(text)):
            self._held[update.index] = held
            return []
        self._sent[update.index] = text, count + sum(len(each.tokens) for each in held)
        return held

    def ended(self, index: int, result: Result) -> list[bytes]:
        """The event of a row's end, with the rest of its text; before it the last canvas, if canvases are sent."""
        last = [event(self.last(index, result, *self._sent.get(index, ("", 0))))]
        options = self.body.stream_options
        if options is None or not options.include_denoise or self._denoised.get(index) == result.nfe[0]:
            return last
        canvas = result.sequences[0, result.prompts[0] : int(result.trace.lengths[0])].tolist()
        return [event(self.denoise(Advanced(index, "", canvas=canvas, forwards=result.nfe[0])), name="denoise"), *last]

    def closed(self, results: Sequence[Result]) -> list[bytes]:
        """The events after all rows."""
        options = self.body.stream_options
        usage = options is not None and options.include_usage
        return [*([event(self.closing(results))] if usage else []), DONE]

    def failed(self, error: RequestError) -> list[bytes]:
        """The event of an error."""
        return [event(error.body)]

    # --- chunks ---

    def chunk(self, update: Advanced) -> dict[str, Any]:
        """A chunk with new text of a row."""
        logprobs = self._logprobs(update.tokens, update.logprobs, offsets=self._offsets_of(update.index))
        self._counted[update.index] = self._counted.get(update.index, 0) + len(update.tokens)
        return self._chunk(update.index, update.text, logprobs)

    def last(self, index: int, result: Result, sent: str, tokens: int) -> dict[str, Any]:
        """The last chunk of a row, after the text `sent` and its first `tokens` tokens."""
        rest = result.tokens[0][tokens:]
        own = token_logprobs(result)
        values = None if own is None else own[tokens:]
        logprobs = self._logprobs(rest, values, len(text_of(result)), offsets=self._offsets_of(index))
        content, calls = self._calls(result)
        self._counted[index] = len(result.tokens[0])
        return self._chunk(index, content[len(sent) :], logprobs, result, calls)

    def closing(self, results: Sequence[Result]) -> dict[str, Any]:
        """The chunk with the usage."""
        return {**self._chunk_head(), "choices": [], "usage": self.usage(results)}

    def denoise(self, update: Advanced) -> dict[str, Any]:
        """A chunk with the state of a row's canvas: the texts of its tokens, None for open positions."""
        assert update.canvas is not None, "asked for"
        assert self.names is not None, "asked for"
        tokens = [None if token is None else self.names.name(token) for token in update.canvas]
        self._denoised[update.index] = update.forwards
        state = {"index": update.index, "forwards": update.forwards, "tokens": tokens}
        return {**self._head("denoise"), "choices": [], "denoise": state}

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: dict[str, Any] | None,
        end: Result | None = None,
        calls: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": logprobs,
            "finish_reason": None if end is None else "tool_calls" if calls else finish_reason(end),
        }
        if not self.chat:
            choice["text"] = text
        else:
            role = {} if index in self._begun else {"role": "assistant"}
            self._begun.add(index)
            choice["delta"] = {**role, "content": text if text or not calls else None}
            if calls:
                choice["delta"]["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
        if end is not None and self.body.return_token_ids:
            choice |= {"token_ids": end.tokens[0], "step_map": end.step_map[0].tolist(), "seed": end.seeds[0]}
        return {**self._chunk_head(), "choices": [choice], **self._usage_so_far()}

    def _usage_so_far(self) -> dict[str, Any]:
        """The usage of a chunk that is not the last: as OpenAI, null; as vLLM on request, what was sent so far."""
        options = self.body.stream_options
        if options is None or not options.include_usage:
            return {}
        if not options.continuous_usage_stats:
            return {"usage": None}
        prompt, completion = self.prompt_tokens, sum(self._counted.values())
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"usage": counts}

    def _chunk_head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self.chat else "text_completion")

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.identifier,
            "object": kind,
            "created": self.created,
            "model": self.name,
            "system_fingerprint": f"pardec-{__version__}",
        }

    # --- log-probabilities ---

    def _offsets_of(self, index: int) -> Offsets | None:
        if self.names is None or self.chat:
            return None
        return self._offsets.setdefault(index, Offsets(self.names))

    def _logprobs(
        self,
        tokens: Sequence[int],
        values: TokenLogprobs | None,
        length: int | None = None,
        *,
        offsets: Offsets | None = None,
    ) -> dict[str, Any] | None:
        """The log-probabilities of a text's tokens, `length` characters in all; `offsets` continue earlier ones."""
        if values is None or self.request.logprobs is None:
            return None
        assert self.names is not None, "asked for"
        if self.chat:
            return self._chat_logprobs(self.names, tokens, values)
        offsets = offsets or Offsets(self.names)
        each = [offsets.next(token) for token in tokens]
        each = each if length is None else [min(offset, length) for offset in each]  # a stop string may cut the text
        return self._completion_logprobs(self.names, tokens, values, each)

    def _chat_logprobs(self, names: TokenNames, tokens: Sequence[int], values: TokenLogprobs) -> dict[str, Any]:
        content = []
        for at, token in enumerate(tokens):
            top = zip(values.ids[at].tolist(), values.top[at].tolist(), strict=True)
            entry = _entry(names, token, float(values.own[at]))
            entry["top_logprobs"] = [_entry(names, other, logprob) for other, logprob in top if other >= 0]
            if self.body.logprob_ids:
                entry["candidates"] = self._candidates(values, at)
            content.append(entry)
        return {"content": content, "refusal": None}

    def _completion_logprobs(
        self, names: TokenNames, tokens: Sequence[int], values: TokenLogprobs, offsets: list[int]
    ) -> dict[str, Any]:
        own = [number(value) for value in values.own.tolist()]
        top: list[dict[str, float | None] | None] = []
        for token, logprob, ids, likely in zip(tokens, own, values.ids.tolist(), values.top.tolist(), strict=True):
            pairs = {other: number(value) for other, value in zip(ids, likely, strict=True) if other >= 0}
            if logprob is not None:
                pairs.setdefault(token, logprob)  # the token's own too, as OpenAI has it
            name_of = names.names([token, *pairs])
            top.append({name_of[other]: value for other, value in pairs.items()} or None)
        answer: dict[str, Any] = {
            "tokens": [names.name(token) for token in tokens],
            "token_logprobs": own,
            "top_logprobs": top if self.request.logprobs else None,
            "text_offset": offsets,
        }
        if self.body.logprob_ids:
            answer["candidates"] = [self._candidates(values, at) for at in range(len(tokens))]
        return answer

    def _candidates(self, values: TokenLogprobs, at: int) -> list[float | None]:
        return [number(value) for value in values.candidates[at].tolist()]


class DeltaAnswer(TextAnswer):
    """Writes the answer of one row as parts: a text, which goes out piece by piece, and after it calls of tools."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sent: str | None = None  # the text so far; None while its part is not open
        self.logprobs: list[dict[str, Any]] = []  # of the tokens of the text so far, if they are requested
        self.calls: list[dict[str, Any]] = []

    def begin_text(self) -> list[bytes]:
        """The events that open the part with the text."""
        raise NotImplementedError

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        """The event of a piece of text, with the log-probabilities of its tokens, if they are requested."""
        raise NotImplementedError

    def end_text(self, text: str) -> list[bytes]:
        """The events that close the part with the text."""
        raise NotImplementedError

    def write_call(self, index: int, call: dict[str, Any]) -> list[bytes]:
        """The events of a call, the part of this index."""
        raise NotImplementedError

    def read(self, result: Result) -> tuple[str | None, list[dict[str, Any]]]:
        """The text and the calls of an answer; no text where it has calls alone. The log-probabilities are complete."""
        content, self.calls = self._calls(result)
        values, tokens = token_logprobs(result), result.tokens[0]
        if self.calls and values is not None:  # the tokens before the first call
            ends = range(1, len(tokens) + 1)
            tokens = tokens[: bisect_right(ends, len(content), key=lambda end: len(self._raw(tokens[:end])))]
        if values is not None:
            self.logprobs = self._contents(tokens, values[: len(tokens)])
        return (content or None) if self.calls else content, self.calls

    def _contents(self, tokens: Sequence[int], values: TokenLogprobs | None) -> list[dict[str, Any]]:
        logprobs = self._logprobs(tokens, values)
        return [] if logprobs is None else logprobs["content"]

    def advanced(self, update: Advanced) -> list[bytes]:
        released = self._released(update)
        logprobs = [entry for each in released for entry in self._contents(each.tokens, each.logprobs)]
        return self._next("".join(each.text for each in released), logprobs)

    def ended(self, index: int, result: Result) -> list[bytes]:
        text, calls = self.read(result)
        rest = self.logprobs[self._sent.get(index, ("", 0))[1] :]
        events = [] if text is None else self._next(text[len(self.sent or "") :], rest)
        if self.sent is None and not calls:
            events += self._next("", always=True)
        events += [] if self.sent is None else self.end_text(self.sent)
        first = self.sent is not None
        return events + [each for at, call in enumerate(calls) for each in self.write_call(first + at, call)]

    def _next(self, text: str, logprobs: list[dict[str, Any]] | None = None, *, always: bool = False) -> list[bytes]:
        if not text and not logprobs and not always:
            return []
        opening = self.begin_text() if self.sent is None else []
        self.sent = (self.sent or "") + text
        return [*opening, self.delta(text, logprobs or [])] if text or logprobs else opening


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt repeated before its answer; the first token has no log-probability."""

    tokens: list[int]
    text_of: Callable[[list[int]], str]
    logprobs: TokenLogprobs | None

    def before(self, text: str, tokens: list[int]) -> str:
        """The prompt, then `text`: the text of the answer's `tokens`, or of its first ones, before a stop string."""
        prompt, answer, both = (self.text_of(ids) for ids in (self.tokens, tokens, [*self.tokens, *tokens]))
        if both.startswith(prompt) and both.endswith(answer) and len(both) >= len(prompt) + len(answer):
            prompt = both[: len(both) - len(answer)]  # with the space that is left out at the beginning of a text
        return prompt + text


def echo(model: Model, ids: list[int], count: int | None, candidates: Sequence[int] | None) -> Echo:
    """A prompt, with log-probabilities of its tokens, the `count` likeliest and `candidates`; the first ones are NaN.

    With a count of None it has no log-probabilities.
    """
    logprobs = None if count is None else _prompt_logprobs(model, ids, count, candidates or [])
    return Echo(ids, lambda tokens: model.text(tokens) or "", logprobs)


def _prompt_logprobs(model: Model, ids: list[int], count: int, candidate_ids: Sequence[int]) -> TokenLogprobs:
    tokens = torch.tensor(ids)
    logits = model.logits(tokens[None])[0, :-1]
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, tokens[1:, None].to(logprobs.device))[:, 0]
    count = min(count, logits.shape[1])
    top = top_ids(logits, count) if count else tokens.new_empty(len(logits), 0, device=logits.device)
    candidates = logprobs[:, list(candidate_ids)]
    parts = (own[:, None], logprobs.gather(1, top), candidates)
    first = [torch.full((1, part.shape[1]), torch.nan) for part in parts]
    own, values, candidates = (torch.cat((nan, part.cpu())) for nan, part in zip(first, parts, strict=True))
    ids_ = torch.cat((torch.full((1, count), -1), top.cpu()))
    return TokenLogprobs(own[:, 0].numpy(), ids_.numpy(), values.numpy(), candidates.numpy())


def image_answer(results: Sequence[Result], scale: int) -> dict[str, Any]:
    """The answer to a request for images."""
    data = [{"b64_json": _png(result, scale), "seed": result.seeds[0]} for result in results]
    usage = {
        "input_tokens": 0,
        "output_tokens": sum(sum(result.generated) for result in results),
        "total_tokens": sum(sum(result.generated) for result in results),
        "forwards": sum(sum(result.nfe) for result in results),
    }
    return {"created": int(time.time()), "data": data, "output_format": "png", "usage": usage}


def token_logprobs(result: Result) -> TokenLogprobs | None:
    """The log-probabilities of a result of one row."""
    return None if result.logprobs is None else result.logprobs[0]


def _entry(names: TokenNames, token: int, logprob: float) -> dict[str, Any]:
    value = names.bytes_of(token)
    return {"token": names.name(token), "logprob": number(logprob), "bytes": None if value is None else list(value)}


def number(value: float) -> float | None:
    """A log-probability as a JSON value: None if there is none, the lowest double for minus infinity."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else -1.7976931348623157e308


def _joined(first: TokenLogprobs | None, second: TokenLogprobs | None) -> TokenLogprobs | None:
    """Joins the log-probabilities of two consecutive texts."""
    if first is None or second is None:
        return None
    parts = ((getattr(first, name.name), getattr(second, name.name)) for name in fields(first))
    return type(first)(*map(np.concatenate, parts))


def text_of(result: Result) -> str:
    """The text of a result of one row."""
    return result.text[0] if result.text is not None else ""


def finish_reason(result: Result) -> str:
    """How the text of a result of one row ends: "stop" or "length".

    A sampler without `eos` fills the whole canvas, and its text may end with an end token before.
    """
    tokens = result.tokens[0]
    return "stop" if tokens and tokens[-1] in result.stop_ids else result.finish[0]


def _png(result: Result, scale: int) -> str:
    assert result.images is not None, "the model has a decoder"
    file = io.BytesIO()
    enlarged(result.images[0], scale).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


DONE = b"data: [DONE]\n\n"

# str.splitlines ends a line at these, and so do clients that read events with iter_lines of httpx 0.28.1, or with that
# of requests 2.34.2 and decode_unicode. The event stream format ends lines at CR and LF alone.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def event(document: dict[str, Any], *, name: str | None = None) -> bytes:
    """Formats a server-sent event."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return in_utf8(f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n")


def typed(document: dict[str, Any]) -> bytes:
    """An event with the name of its document's `type`."""
    return event(document, name=document["type"])
