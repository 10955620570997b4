"""The answers to requests, in the form of OpenAI's API."""

from __future__ import annotations

import base64
import io
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ..requests.images import enlarged
from ..result import Result
from ..version import __version__
from ..views.token_text import TokenTexts
from .schemas import ChatBody, TextBody

if TYPE_CHECKING:
    from pardec.samplers.logprobs import TokenLogprobs

    from .listening import Advanced
    from .reading import TextRequest


@dataclass
class TextAnswer:
    """Writes the answer to one request for text, whole or in chunks."""

    body: TextBody
    request: TextRequest
    name: str  # of the model
    tokenizer: Any
    identifier: str = field(init=False)
    created: int = field(init=False)

    def __post_init__(self) -> None:
        self.chat = isinstance(self.body, ChatBody)
        self.identifier = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._begun: set[int] = set()
        self._texts = TokenTexts(self.tokenizer)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts, each once."""
        return sum(map(len, self.request.prompts))

    # --- whole ---

    def whole(self, results: Sequence[Result], echoes: Sequence[Echo] | None = None) -> dict[str, Any]:
        """The answer to a request without a stream; `echoes` are the prompts, repeated before the answers."""
        choices = [self._choice(index, result, echoes) for index, result in enumerate(results)]
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": self.usage(results)}

    def _choice(self, index: int, result: Result, echoes: Sequence[Echo] | None) -> dict[str, Any]:
        text, tokens = _text(result), result.tokens[0]
        logprobs = self._logprobs(tokens, token_logprobs(result))
        choice: dict[str, Any] = {"index": index, "finish_reason": result.finish[0], "logprobs": logprobs}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
            if echoes is not None:
                echo = echoes[index // self.request.samples]
                choice["text"] = echo.text + text
                if self.request.logprobs is not None:
                    all_tokens = [*echo.tokens, *tokens]
                    choice["logprobs"] = self._logprobs(all_tokens, _joined(echo.logprobs, token_logprobs(result)))
        if self.body.return_token_ids:
            choice |= {
                "token_ids": tokens,
                "step_map": result.step_map[0].tolist(),
                "seed": result.seeds[0],
                "prompt_token_ids": self.request.prompts[index // self.request.samples],
            }
        return choice

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """Tokens, and the forwards that the rows took part in."""
        prompt, completion = self.prompt_tokens, sum(sum(result.generated) for result in results)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "forwards": sum(sum(result.nfe) for result in results),
            "prompt_tokens_details": {"cached_tokens": sum(sum(result.reused) for result in results)},
        }

    # --- chunks ---

    def chunk(self, update: Advanced) -> dict[str, Any]:
        """New text of a row."""
        return self._chunk(update.index, update.text, self._logprobs(update.tokens, update.logprobs))

    def last(self, index: int, result: Result, sent: str, tokens: int) -> dict[str, Any]:
        """The end of a row of which the text `sent` and so many `tokens` have been sent."""
        rest = result.tokens[0][tokens:]
        own = token_logprobs(result)
        logprobs = self._logprobs(rest, None if own is None else own[tokens:])
        return self._chunk(index, _text(result)[len(sent) :], logprobs, result)

    def closing(self, results: Sequence[Result]) -> dict[str, Any]:
        """The chunk of usage."""
        return {**self._chunk_head(), "choices": [], "usage": self.usage(results)}

    def denoise(self, update: Advanced) -> dict[str, Any]:
        """A state of a row's canvas: its tokens as text, None where they are open."""
        assert update.canvas is not None, "asked for"
        tokens = [None if token is None else self._text_of(token) for token in update.canvas]
        state = {"index": update.index, "forwards": update.forwards, "tokens": tokens}
        return {**self._head("denoise"), "choices": [], "denoise": state}

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None, end: Result | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": logprobs,
            "finish_reason": None if end is None else end.finish[0],
        }
        if not self.chat:
            choice["text"] = text
        else:
            role = {} if index in self._begun else {"role": "assistant"}
            self._begun.add(index)
            choice["delta"] = {**role, "content": text}
        if end is not None and self.body.return_token_ids:
            choice |= {"token_ids": end.tokens[0], "step_map": end.step_map[0].tolist(), "seed": end.seeds[0]}
        usage = {"usage": None} if self.body.stream_options and self.body.stream_options.include_usage else {}
        return {**self._chunk_head(), "choices": [choice], **usage}

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

    def _logprobs(self, tokens: Sequence[int], values: TokenLogprobs | None) -> dict[str, Any] | None:
        if values is None or self.request.logprobs is None:
            return None
        return self._chat_logprobs(tokens, values) if self.chat else self._completion_logprobs(tokens, values)

    def _chat_logprobs(self, tokens: Sequence[int], values: TokenLogprobs) -> dict[str, Any]:
        content = []
        for at, token in enumerate(tokens):
            top = zip(values.ids[at].tolist(), values.top[at].tolist(), strict=True)
            entry = self._entry(token, float(values.own[at]))
            entry["top_logprobs"] = [self._entry(other, logprob) for other, logprob in top]
            if self.body.logprob_ids:
                entry["candidates"] = self._candidates(values, at)
            content.append(entry)
        return {"content": content, "refusal": None}

    def _completion_logprobs(self, tokens: Sequence[int], values: TokenLogprobs) -> dict[str, Any]:
        texts = [self._text_of(token) for token in tokens]
        offsets = np.cumsum([0, *map(len, texts)])[: len(texts)].tolist()
        top = [
            {self._text_of(other): number(value) for other, value in zip(ids, likely, strict=True) if other >= 0}
            for ids, likely in zip(values.ids.tolist(), values.top.tolist(), strict=True)
        ]
        own = [number(value) for value in values.own.tolist()]
        for text, logprob, likely in zip(texts, own, top, strict=True):  # the token's own too, as OpenAI has it
            if logprob is not None:
                likely.setdefault(text, logprob)
        answer: dict[str, Any] = {
            "tokens": texts,
            "token_logprobs": own,
            "top_logprobs": [likely or None for likely in top] if self.request.logprobs else None,
            "text_offset": offsets,
        }
        if self.body.logprob_ids:
            answer["candidates"] = [self._candidates(values, at) for at in range(len(texts))]
        return answer

    def _candidates(self, values: TokenLogprobs, at: int) -> list[float | None]:
        return [number(value) for value in values.candidates[at].tolist()]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text_of(token)
        return {"token": text, "logprob": number(logprob), "bytes": list(text.encode("utf-8", "replace"))}

    def _text_of(self, token: int) -> str:
        return self._texts([token])[0]


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is repeated before its answer; the first token has no log-probability."""

    tokens: list[int]
    text: str
    logprobs: TokenLogprobs | None


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


def number(value: float) -> float | None:
    """A log-probability in JSON: None where there is none, the lowest double for minus infinity."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else -1.7976931348623157e308


def _joined(first: TokenLogprobs | None, second: TokenLogprobs | None) -> TokenLogprobs | None:
    """Those of two texts, one behind the other."""
    if first is None or second is None:
        return None
    parts = ((getattr(first, name.name), getattr(second, name.name)) for name in fields(first))
    return type(first)(*map(np.concatenate, parts))


def _text(result: Result) -> str:
    return result.text[0] if result.text is not None else ""


def _png(result: Result, scale: int) -> str:
    assert result.images is not None, "the model has a decoder"
    file = io.BytesIO()
    enlarged(result.images[0], scale).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()
