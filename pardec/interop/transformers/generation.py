"""transformers' `generate` with a pardec sampler: what `custom_generate` takes."""

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

from ...requests.text import Call
from .lending import lent
from .refusals import real, refuse
from .rules import Padded, Stopping
from .stateless import require_stateless

if TYPE_CHECKING:
    from collections.abc import Generator

    from pardec.samplers.spec import Policy, Spec
    from pardec.samplers.speculative.contracts import SpeculativeSampler


@dataclass
class Output(GenerateDecoderOnlyOutput):  # type: ignore[misc]
    """What transformers returns with `return_dict_in_generate`, and what the decoding took."""

    nfe: tuple[int, ...] | None = None  # forwards that each row took part in
    spec: str | None = None  # the sampler, every parameter written out


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
    """Decodes in place of transformers' own loop: `model.generate(..., custom_generate=generate, sampler="lookup")`.

    The result has transformers' form, rows padded as it pads them. Greedy decoding gives the tokens that transformers
    gives, but for logits that tie; sampling draws from the same law with other random numbers. Stopping criteria are
    asked as transformers asks them, once a token about all rows; a row that others hold up is decoded on meanwhile.
    Logits processors must be functions of a row's text: one of the caller's is tried on the prompts. `stop_strings`
    come as a StopStringCriteria in stopping_criteria, since transformers hands a tokenizer to its own loops only.

    The model's modules run, with its weights as they are and the hooks on its body and its head. Those on the model
    itself would not, and are refused; when others come or go, it is tried anew whether pardec gives its logits.

    Args:
        sampler: a spec of pardec's for autoregressive models, or a resolved one such as `candidates` makes.
        seed: of the draws, one or one a row; None draws one from torch's generator, which `set_seed` sets.

    Raises:
        SpecError: what the call asks cannot be done; the message names it.
        ModelError: the model cannot be run faithfully.
    """
    outer = _call(inspect.currentframe())
    refuse(model, generation_config, logits_processor, model_kwargs, outer.get("assistant_model"))
    if synced_gpus:
        raise SpecError("synced_gpus is asked for, and pardec runs each process on its own", hint="leave it out")
    kept = real(input_ids, model_kwargs)
    stopping = Stopping(stopping_criteria, input_ids)
    if stopping.most is None:
        raise SpecError("no length is given", hint="max_new_tokens=64 asks for 64 tokens")
    sampling = bool(generation_config.do_sample)
    if seed is None:
        seed = int(torch.randint(0, 1 << 62, ())) if sampling else 0
    if streamer is not None and outer.get("streamer") is None:
        streamer.put(input_ids.cpu())  # as `generate` has done for one that it was given
    pad = generation_config._pad_token_tensor
    growing = _Growing(stopping, None if pad is None else int(pad), streamer or outer.get("streamer"), len(input_ids))
    with lent(model) as view:
        call = view.prepare(
            input_ids=[ids[which] for ids, which in zip(input_ids, kept, strict=True)],
            sampler=sampler,
            max_new_tokens=stopping.most,
            temperature=1.0 if sampling else 0.0,  # what shapes the law is among the processors
            stop_ids=[token for token in stopping.stop_ids if token < view.language_model.vocab_size],
            seed=seed,
        )
        assert isinstance(call, Call), "what is lent has ids"
        require_stateless(logits_processor, input_ids, view.language_model.vocab_size)
        processors = (Padded(logits_processor, input_ids, kept),) if logits_processor else ()
        call = replace(call, request=replace(call.request, processors=processors))
        with closing(cast("Generator[Event]", view.run(call))) as events:
            growing.follow(events, call.request.prompts)
    sequences = torch.cat((input_ids, growing.columns().to(input_ids.device)), 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    return Output(sequences=sequences, nfe=tuple(growing.nfe), spec=str(call.sampler.spec))


def _call(frame: FrameType | None) -> Mapping[str, Any]:
    """The arguments of the `generate` that called: it keeps streamer and assistant_model from custom loops."""
    outer = None if frame is None else frame.f_back
    known = inspect.unwrap(GenerationMixin.generate).__code__
    return outer.f_locals if outer is not None and outer.f_code is known else {}


class _Growing:
    """The tokens of every row as they come, cut where a criterion says so.

    Rows go at their own pace; criteria and the streamer are told columns that all rows have, one after another, as they
    are in transformers.
    """

    def __init__(self, stopping: Stopping, pad: int | None, streamer: Any, rows: int) -> None:
        self.stopping, self.pad, self.streamer = stopping, pad, streamer
        self.made: list[list[int]] = [[] for _ in range(rows)]
        self.ends: list[int | None] = [None] * rows  # tokens that stand, of rows that are done
        self.nfe = [0] * rows
        self.columns_sent = 0  # columns that criteria and the streamer have

    def follow(self, events: Iterator[Event], prompts: Sequence[int]) -> None:
        """Until every row is done."""
        for event in events:
            if isinstance(event, Accepted):
                for at, row in enumerate(event.rows.tolist()):
                    self.made[row] = event.tokens[at, prompts[row] : event.settled[at]].tolist()
                    self.nfe[row] = int(event.nfe[at])
                if self.stopping.late():
                    self.ends = [
                        len(made) if end is None else end for made, end in zip(self.made, self.ends, strict=True)
                    ]
                    break
            elif isinstance(event, RowFinished) and self.ends[event.row] is None:
                self.ends[event.row] = len(self.made[event.row])
            self._tell()
            if self._done():
                break
        self._tell()
        if self.streamer is not None:
            self.streamer.end()

    def columns(self) -> Tensor:
        """[B, T] int64: what was generated, shorter rows filled up."""
        width = self._width()
        return torch.tensor([[self._at(row, column) for column in range(width)] for row in range(len(self.made))])

    def _done(self) -> bool:
        """Whether every row is done, and criteria have seen all that stands."""
        return all(end is not None for end in self.ends) and self.columns_sent >= max(end or 0 for end in self.ends)

    def _width(self) -> int:
        """How many columns all rows have so far."""
        # Without an end token transformers lets a row that is done go on until all are.
        filled = [self.stopping.ends and end is not None for end in self.ends]
        has = [len(made) for made, full in zip(self.made, filled, strict=True) if not full]
        if all(end is not None for end in self.ends):
            has.append(max(end or 0 for end in self.ends))
        return min(has)

    def _at(self, row: int, column: int) -> int:
        end = self.ends[row]
        if self.stopping.ends and end is not None and column >= end:
            return self.pad if self.pad is not None else 0
        return self.made[row][column]

    def _tell(self) -> None:
        """Tells of every column that all rows have."""
        if not (self.stopping.others or self.streamer):
            self.columns_sent = self._width()
        while self.columns_sent < self._width():
            column = torch.tensor([self._at(row, self.columns_sent) for row in range(len(self.made))])
            self.columns_sent += 1
            if self.stopping.others:
                for row in np.flatnonzero(self.stopping.stopped(column)).tolist():
                    self.ends[row] = min(self.columns_sent, self.ends[row] or self.columns_sent)
            if self.streamer is not None:
                self.streamer.put(column)
