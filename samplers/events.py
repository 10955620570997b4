"""What a loop tells while it runs. Arrays are on the host; rows are the request's, not the batch's present ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .trace import Trace


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The canvases before the first forward."""

    tokens: np.ndarray  # [B, L] int64, right-padded
    open: np.ndarray  # [B, L] bool
    prompts: np.ndarray  # [B] where generation begins


@dataclass(frozen=True, slots=True)
class Step(Event):
    """One step of a loop: a forward for each live row, and what was committed."""

    number: int  # from 0
    rows: np.ndarray  # [n] live rows
    nfe: np.ndarray  # [n] forwards each took part in so far
    tokens: np.ndarray  # [n, L] int64 as of now
    open: np.ndarray  # [n, L] bool
    committed: np.ndarray  # [n, L] bool, by this step
    settled: np.ndarray  # [n] the first position that is open or may still change; all before it is final
    revised: np.ndarray | None = None  # [n, L] bool: taken back or overwritten by this step, where a stage may do that
    text: tuple[str, ...] | None = None  # per live row: the text that became certain; put in by `Model.stream`


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(Step):
    """One round of the verify loop: a step whose commits are the accepted tokens and the next one."""

    gained: np.ndarray  # [n] tokens committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Step):
    """One round of the continuous loop. A vector has no id: in `tokens`, 0 stands for one that is known."""

    latents: np.ndarray  # [n, L, d] float32; 0 where nothing is known


@dataclass(frozen=True, slots=True)
class RowFinished(Event):
    """A row is done; it costs nothing from here on."""

    row: int
    tokens: np.ndarray  # [L_i] int64, the whole canvas of the row; of AR models up to its last token
    reason: str  # "stop": its first end token or stop string; "length": nothing left to fill
    nfe: int
    text: str | None = None  # what the row's steps have not told yet; all its pieces make up its Result.text


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """All rows are done."""

    tokens: np.ndarray  # [B, L] int64, right-padded
    reasons: tuple[str, ...]
    nfe: tuple[int, ...]
    forward_rows: tuple[int, ...]  # rows of model forwards: a guided call counts twice
    tokens_fed: tuple[int, ...]  # query positions of all forwards, guidance included
    trace: Trace
    padding: int = 0  # positions fed beside those, that belong to no row; counted by the verify loop
    draft_forwards: tuple[int, ...] = ()  # per row: forwards of a drafting model
    deviation: tuple[float, ...] = ()  # per row: what a relaxed acceptance says it adds up to, in total variation
    latents: np.ndarray | None = None  # [B, L, d] float32, of models whose tokens are vectors
    seconds: Mapping[str, float] = field(default_factory=dict)  # where the time went, of the continuous loop
