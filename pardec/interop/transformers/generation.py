"""Decoding for transformers' `generate` with a pardec sampler, as its `custom_generate` argument."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers.generation import GenerationMixin
from transformers.generation.utils import GenerateDecoderOnlyOutput

from pardec.models.errors import SpecError
from pardec.samplers.events import Accepted, Event, RowFinished

from .lending import model_view
from .refusals import real_tokens, refuse
from .rules import PaddedProcessors, Stopping
from .stateless import require_stateless

if TYPE_CHECKING:
    from collections.abc import Generator

    from pardec.samplers.spec import Policy, Spec
    from pardec.samplers.speculative.contracts import SpeculativeSampler


@dataclass
class Output(GenerateDecoderOnlyOutput):  # type: ignore[misc]
    """The output of transformers with `return_dict_in_generate`, with pardec's figures."""

    nfe: tuple[int, ...] | None = None  # forwards of each row
    spec: str | None = None  # the resolved sampler with all parameters


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    generation_config: Any = None,
    sampler: str | Spec | Policy | SpeculativeSampler | None = None,
    seed: int | Sequence[int] | None = None,
    streamer: Any = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> Tensor | Output:
    """Replaces transformers' decoding loop: `model.generate(..., custom_generate=generate, sampler="lookup")`.

    Returns and pads as transformers does. Greedy decoding gives the same tokens, except for tied logits; sampling draws
    from the same distribution with other random numbers. Stopping criteria are called as in transformers, once per
    token with all rows; a row may be decoded further while it waits for others. Logits processors must be functions of
    a row's text: those of the caller are tested on the prompts. Pass `stop_strings` as a StopStringCriteria in
    stopping_criteria, since transformers gives a tokenizer to its own loops only.

    The model's modules run with their weights and the hooks on its body and head. Hooks on the model itself would not
    run and raise SpecError; when other hooks change, pardec's logits are compared with the model's again.

    Args:
        sampler: a spec for autoregressive models, or a resolved sampler such as that of `candidates`.
        seed: one for all rows or one per row; None draws one from torch's generator, which `set_seed` sets.

    Raises:
        SpecError: for arguments that pardec does not support, by name.
        ModelError: pardec cannot reproduce the model's logits.
    """
    caller = _caller_arguments(inspect.currentframe())
    refuse(model, generation_config, logits_processor, model_kwargs, caller.get("assistant_model"))
    if synced_gpus:
        raise SpecError("synced_gpus is on, and pardec runs each process independently", hint="leave it out")
    is_token = real_tokens(input_ids, model_kwargs)
    stopping = Stopping(stopping_criteria, input_ids)
    if stopping.max_new_tokens is None:
        raise SpecError("no length is given", hint="for example max_new_tokens=64")
    sampling = bool(generation_config.do_sample)
    if seed is None:
        seed = int(torch.randint(0, 1 << 62, ())) if sampling else 0
    if streamer is not None and caller.get("streamer") is None:
        streamer.put(input_ids.cpu())  # `generate` has done this for its own streamer
    pad = generation_config._pad_token_tensor
    row_tokens = _RowTokens(
        stopping, None if pad is None else int(pad), streamer or caller.get("streamer"), len(input_ids)
    )
    with model_view(model) as view:
        call = view.prepare(
            input_ids=[ids[row_mask] for ids, row_mask in zip(input_ids, is_token, strict=True)],
            sampler=sampler,
            max_new_tokens=stopping.max_new_tokens,
            temperature=1.0 if sampling else 0.0,  # temperature, top-k and top-p are among the processors
            stop_ids=[token for token in stopping.stop_ids if token < view.language_model.vocab_size],
            seed=seed,
        )
        if getattr(call.sampler, "texts", None) is not None:
            raise SpecError(
                f"{call.sampler.spec} has no final tokens before its last forward, and generate needs some after each",
                hint='choose a drafter, such as sampler="lookup"',
            )
        require_stateless(logits_processor, input_ids, view.language_model.vocab_size)
        processors = (PaddedProcessors(logits_processor, input_ids, is_token),) if logits_processor else ()
        call = replace(call, request=replace(call.request, processors=processors))
        with closing(cast("Generator[Event]", view.run(call))) as events:
            row_tokens.follow(events, call.request.prompts)
    sequences = torch.cat((input_ids, row_tokens.columns().to(input_ids.device)), 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    return Output(sequences=sequences, nfe=tuple(row_tokens.nfe), spec=str(call.sampler.spec))


def _caller_arguments(frame: FrameType | None) -> Mapping[str, Any]:
    """The arguments of the calling `generate`, which does not pass streamer and assistant_model to custom loops."""
    outer = None if frame is None else frame.f_back
    code = inspect.unwrap(GenerationMixin.generate).__code__
    return outer.f_locals if outer is not None and outer.f_code is code else {}


class _RowTokens:
    """Collects the tokens of every row, and cuts rows where a criterion stops them.

    Rows progress at different speeds; criteria and the streamer get columns that all rows have, one after another, as
    in transformers.
    """

    def __init__(self, stopping: Stopping, pad: int | None, streamer: Any, rows: int) -> None:
        self.stopping, self.pad, self.streamer = stopping, pad, streamer
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.ends: list[int | None] = [None] * rows  # final length of finished rows
        self.nfe = [0] * rows
        self.columns_sent = 0  # columns passed to criteria and the streamer

    def follow(self, events: Iterator[Event], prompts: Sequence[int]) -> None:
        """Processes events until every row is finished."""
        for event in events:
            if isinstance(event, Accepted):
                for at, row in enumerate(event.rows.tolist()):
                    self.tokens[row] = event.tokens[at, prompts[row] : event.settled[at]].tolist()
                    self.nfe[row] = int(event.nfe[at])
                if self.stopping.time_is_up():
                    self.ends = [
                        len(tokens) if end is None else end for tokens, end in zip(self.tokens, self.ends, strict=True)
                    ]
                    break
            elif isinstance(event, RowFinished) and self.ends[event.row] is None:
                self.ends[event.row] = len(self.tokens[event.row])
            self._send_columns()
            if self._all_finished():
                break
        self._send_columns()
        if self.streamer is not None:
            self.streamer.end()

    def columns(self) -> Tensor:
        """[B, T] int64: the generated tokens, shorter rows padded."""
        width = self._width()
        return torch.tensor([[self._at(row, column) for column in range(width)] for row in range(len(self.tokens))])

    def _all_finished(self) -> bool:
        """Whether every row is finished, and criteria have seen all its tokens."""
        return all(end is not None for end in self.ends) and self.columns_sent >= max(end or 0 for end in self.ends)

    def _width(self) -> int:
        """The number of columns that all rows have so far."""
        # Without an end token transformers continues a finished row until all are finished.
        filled = [self.stopping.ends and end is not None for end in self.ends]
        lengths = [len(tokens) for tokens, padded in zip(self.tokens, filled, strict=True) if not padded]
        if all(end is not None for end in self.ends):
            lengths.append(max(end or 0 for end in self.ends))
        return min(lengths)

    def _at(self, row: int, column: int) -> int:
        end = self.ends[row]
        if self.stopping.ends and end is not None and column >= end:
            return self.pad if self.pad is not None else 0
        return self.tokens[row][column]

    def _send_columns(self) -> None:
        """Passes every new complete column to criteria and the streamer."""
        if not (self.stopping.others or self.streamer):
            self.columns_sent = self._width()
        while self.columns_sent < self._width():
            column = torch.tensor([self._at(row, self.columns_sent) for row in range(len(self.tokens))])
            self.columns_sent += 1
            if self.stopping.others:
                for row in np.flatnonzero(self.stopping.stop_rows(column)).tolist():
                    self.ends[row] = min(self.columns_sent, self.ends[row] or self.columns_sent)
            if self.streamer is not None:
                self.streamer.put(column)
