"""The data of a result: tokens, text, forwards, and the order of decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.logprobs import TokenLogprobs
from pardec.samplers.trace import Trace

from .requests.tools import form_of
from .views.token_text import TokenTexts

if TYPE_CHECKING:
    from PIL.Image import Image

R = TypeVar("R", bound="ResultData")
PLACEHOLDER = "■ "  # printed for a continuous token where there is no image
# The fields of a row whose log-probabilities were requested.
LOGPROB_FIELDS = ("step_map", "token_logprobs", "top_ids", "top_logprobs", "candidate_logprobs")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from the first forward to the last commit, without loading, tokenizing and decoding to text."""

    total_s: float
    tokens: int  # the sum of Result.generated
    parts: Mapping[str, float] = field(default_factory=dict)  # seconds of the model's parts, where measured

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True, eq=False)
class ResultData:
    """One finished request of B rows. Tensors are on the CPU.

    Attributes:
        sequences: [B, L] int64, prompt and generation, right-padded; for a masked model the whole canvas. Continuous
            tokens have no ids: [B, 0].
        tokens: ids per row after the prompt, cut after the first end token that was generated, or the token that
            completes a stop string; none for continuous tokens.
        latents: the continuous tokens of images, [B, h, w, d] float32; None for discrete tokens.
        text: the same as text, special tokens left out and cut before a stop string; None without a tokenizer.
        generated: per row, the number of generated tokens before the first end token; the token that completes a stop
            string counts.
        nfe: forwards each row took part in; a guided call counts once.
        forward_rows: rows of model forwards; a guided call counts twice.
        tokens_fed: positions queried over all forwards.
        spec: the resolved sampler with every parameter.
        draft_forwards: per row, forwards of a draft model in its rounds, where there is one. A round drafts until no
            row of the batch goes on, so that a row alone may have fewer.
        reused: per row, prompt tokens whose keys and values came from `Model.prefix_cache`; no forward queried them.
        deviation: per row, the total variation that a relaxed acceptance adds up to; each method documents how it
            counts. 0 where the output is exact, None where a relaxed sampler does not measure it.
        step_map: per row, the forward that committed each of its tokens, [n] int64, counted from 0 in the row; -1 where
            none did. Of continuous tokens the call of the backbone.
        token_logprobs: per row, the log-probability of each of its tokens, [n] float32, by the model's own distribution
            at the forward of `step_map`; NaN where none committed it. None without `logprobs`.
        top_logprobs: per row, the same as `TokenLogprobs`, with the likeliest tokens there; None with `logprobs` of 0.
        candidate_logprobs: per row, the log-probabilities of `logprob_ids`, [n, c] float32; None without them.
        padding: positions computed in addition to `tokens_fed`, in forwards of rows of unequal length (verify loop).
        exact: "greedy" if the output is that of the `sequential` baseline, "distribution" if it is sampled from the
            same distribution, else "relaxed". In 16 bits "greedy up to bfloat16 rounding" (or float16): near-ties may
            fall otherwise than in `sequential`.
        trace: which forward committed each position, and which positions each forward computed. For continuous tokens
            forwards are calls of the backbone, and ids are 0.
        finish: per row "stop" (first end token or stop string) or "length" (nothing left to fill; a masked sampler
            without `eos` fills its canvas after an end token too).
        prompts: per row, the number of tokens before the generated region.
        seeds: per row; a row with its seed gives the same tokens alone and in any batch.
        settings: the arguments as resolved.
        pieces: the text of each token, per row; None without a tokenizer. Continuous ones are a grid of `PLACEHOLDER`.
        images: the images; None for text, and without a decoder.
        shown: per image its caption or class, None where it was made from features; None for text.
        grid: rows and columns of an image's token grid; None for text.
        sides: sides of an image's token maps, coarse to fine; its tokens are the tokens of all maps. None for others.
        stride: tokens from a row of an image to the next: its columns, and an end-of-row token if the family has one.
    """

    sequences: Tensor
    tokens: list[list[int]]
    text: list[str] | None
    generated: list[int]
    nfe: list[int]
    forward_rows: list[int]
    tokens_fed: list[int]
    spec: str
    exact: str
    trace: Trace
    timing: Timing
    finish: list[str]
    prompts: list[int]
    stop_ids: tuple[int, ...]
    seeds: list[int]
    model: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    images: list[Image] | None = None
    shown: list[str | int | None] | None = None
    grid: tuple[int, int] | None = None
    stride: int | None = None
    sides: tuple[int, ...] | None = None
    tokenizer: Any = field(default=None, repr=False)
    stored_texts: list[list[str]] | None = field(default=None, repr=False)
    latents: Tensor | None = None
    draft_forwards: list[int] = field(default_factory=list)
    deviation: list[float | None] = field(default_factory=list)
    padding: int = 0
    reused: list[int] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        """Generated tokens divided by forwards, both summed over the rows."""
        return sum(self.generated) / max(sum(self.nfe), 1)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens gained per round of the verify loop, the next token included, up to the first end token.

        The prompt's round and tokens without an alternative do not count. None for masked and continuous models.
        """
        if not self.trace.accepted or self.latents is not None:
            return None
        gained = [count for row in self.trace.gained for count in row[1:] if count]
        return sum(gained) / len(gained) if gained else None

    @property
    def acceptance_rate(self) -> float | None:
        """The share of drafted tokens that were accepted, over all rows; None where nothing was drafted."""
        drafts = sum(map(sum, self.trace.drafted))
        return sum(map(sum, self.trace.accepted)) / drafts if drafts else None

    @property
    def parsed(self) -> list[Any] | None:
        """Each row's text parsed as JSON, if `response_format` requested JSON; else None.

        Raises ValueError for a row that was left before its end.
        """
        form = self.settings.get("response_format")
        return None if form is None or self.text is None else [json.loads(text) for text in self.text]

    @property
    def tool_calls(self) -> list[list[dict[str, Any]]] | None:
        """Per row, the calls in its answer, each with `name` and `arguments`; None if the request had no tools.

        Raises SpecError for a result that was read from a file, which has no tokenizer.
        """
        if not self.settings.get("tools"):
            return None
        if self.tokenizer is None:
            raise SpecError("calls are read with the model's tokenizer", hint="read them before the result is saved")
        form = form_of(SimpleNamespace(tokenizer=self.tokenizer, name=self.model))
        texts = (str(self.tokenizer.decode(tokens, skip_special_tokens=False)) for tokens in self.tokens)
        return [
            [{"name": name, "arguments": json.loads(arguments)} for name, arguments in form.read(text)[1]]
            for text in texts
        ]

    def span(self, row: int) -> slice:
        """The positions of a row's generated tokens in the trace, the first end token included."""
        start = self.prompts[row]
        return slice(start, start + (len(self.tokens[row]) if self.latents is None else self.generated[row]))

    @cached_property
    def step_map(self) -> list[np.ndarray]:
        forward = self.trace.forward
        return [np.maximum(forward[row, self.span(row)], -1) for row in range(len(self.tokens))]

    @cached_property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Log-probabilities per row, at its generated tokens."""
        whole = self.trace.logprobs
        return None if whole is None else [whole[row, self.span(row)] for row in range(len(self.tokens))]

    @property
    def token_logprobs(self) -> list[np.ndarray] | None:
        return None if self.logprobs is None else [row.own for row in self.logprobs]

    @property
    def top_logprobs(self) -> list[TokenLogprobs] | None:
        return None if self.logprobs is None or not self.logprobs[0].ids.shape[1] else self.logprobs

    @property
    def candidate_logprobs(self) -> list[np.ndarray] | None:
        if self.logprobs is None or not self.logprobs[0].candidates.shape[1]:
            return None
        return [row.candidates for row in self.logprobs]

    @cached_property
    def pieces(self) -> list[list[str]] | None:
        if self.latents is not None and self.grid is not None:
            rows, columns = self.grid
            return [([PLACEHOLDER] * (columns - 1) + [f"{PLACEHOLDER}\n"]) * rows for _ in self.tokens]
        if self.stored_texts is not None or self.tokenizer is None:
            return self.stored_texts
        texts_of = TokenTexts(self.tokenizer)
        lengths = self.trace.lengths.tolist()
        return [texts_of(row[:end]) for row, end in zip(self.sequences.tolist(), lengths, strict=True)]

    def rows(self) -> list[dict[str, Any]]:
        """Each row as a dict of JSON values."""
        return [
            plain_row(
                text=self.text[row] if self.text is not None else None,
                tokens=tokens,
                finish=self.finish[row],
                nfe=self.nfe[row],
                generated=self.generated[row],
                seed=self.seeds[row],
                step_map=self.step_map[row],
                logprobs=None if self.logprobs is None else self.logprobs[row],
            )
            for row, tokens in enumerate(self.tokens)
        ]


def one_row(result: R, row: int) -> R:
    """Row `row` of a result as a separate result; time is divided equally among the rows."""
    count, length = len(result.tokens), int(result.trace.lengths[row])

    def cut(value: Any) -> Any:
        if isinstance(value, TokenLogprobs):
            return value[row : row + 1, :length]
        if isinstance(value, np.ndarray | Tensor):
            return value[row : row + 1, :length] if value.ndim > 1 else value[row : row + 1]
        return type(value)([value[row]]) if isinstance(value, list | tuple) and len(value) == count else value

    trace = replace(result.trace, **{f.name: cut(getattr(result.trace, f.name)) for f in fields(result.trace)})
    whole = ("trace", "timing", "stop_ids", "grid", "sides", "latents")
    parts = {f.name: cut(getattr(result, f.name)) for f in fields(result) if f.name not in whole}
    shares = {name: seconds / count for name, seconds in result.timing.parts.items()}
    timing = Timing(result.timing.total_s / count, result.generated[row], shares)
    latents = None if result.latents is None else result.latents[row : row + 1]
    return replace(result, trace=trace, timing=timing, latents=latents, **parts)


def plain_row(
    *,
    text: str | None,
    tokens: list[int],
    finish: str,
    nfe: int,
    generated: int,
    seed: int,
    step_map: np.ndarray | None = None,
    logprobs: TokenLogprobs | None = None,
) -> dict[str, Any]:
    """One row as a dict of JSON values, with the fields of `pardec generate --json` and of rows files.

    `step_map` and `logprobs` [n] are those of its tokens; without the second neither is in the row.
    """
    return {
        "text": text,
        "tokens": tokens,
        "finish": finish,
        "nfe": nfe,
        "generated": generated,
        "tokens_per_forward": generated / max(nfe, 1),
        "seed": seed,
        **({} if logprobs is None else plain_logprobs(logprobs)),
        **({} if logprobs is None or step_map is None else {"step_map": step_map.tolist()}),
    }


def plain_logprobs(logprobs: TokenLogprobs) -> dict[str, Any]:
    """Log-probabilities as JSON values, under the names of `Result.to_arrays`; null for NaN."""
    values = {"token_logprobs": plain_floats(logprobs.own)}
    if logprobs.ids.shape[-1]:
        values |= {"top_ids": logprobs.ids.tolist(), "top_logprobs": plain_floats(logprobs.top)}
    if logprobs.candidates.shape[-1]:
        values["candidate_logprobs"] = plain_floats(logprobs.candidates)
    return values


def plain_floats(values: np.ndarray) -> list[Any]:
    """float32 values as JSON values: null for NaN, and the lowest float32 for -inf, which a trimmed head gives."""
    plain = np.maximum(values, np.finfo(np.float32).min).astype(object)
    plain[np.isnan(values)] = None
    result: list[Any] = plain.tolist()
    return result
