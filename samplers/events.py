"""The events that loops yield. Arrays are on the host; `rows` are indices into the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .logprobs import TokenLogprobs
from .trace import Trace


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The canvases before the first forward."""

    tokens: np.ndarray  # [B, L] int64, right-padded
    open: np.ndarray  # [B, L] bool; positions by which a row may grow, too
    prompts: np.ndarray  # [B] where generation begins


@dataclass(frozen=True, slots=True)
class Step(Event):
    """One step of a loop: a forward for each live row, and its commits."""

    number: int  # from 0
    rows: np.ndarray  # [n] live rows
    nfe: np.ndarray  # [n] forwards that each row took part in so far
    tokens: np.ndarray  # [n, L] int64 as of now
    open: np.ndarray  # [n, L] bool
    committed: np.ndarray  # [n, L] bool, by this step
    settled: np.ndarray  # [n] the first position that is open or may still change; all before it are final
    revised: np.ndarray | None = None  # [n, L] bool: reopened or overwritten by this step, if a stage revises
    text: tuple[str, ...] | None = None  # per live row: the text that became final; set by `Model.stream`
    serial: np.ndarray | None = None  # [n, L] int32, as in `Trace`, if a stage moves tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(Step):
    """One round of the verify loop: a step whose commits are the accepted tokens and the next one."""

    gained: np.ndarray  # [n] tokens committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Step):
    """One round of the continuous loop. Vectors have no ids: in `tokens`, 0 marks a known vector."""

    latents: np.ndarray  # [n, L, d] float32; 0 where nothing is known


@dataclass(frozen=True, slots=True)
class RowFinished(Event):
    """A row is done and takes part in no further forward."""

    row: int
    tokens: np.ndarray  # [L_i] int64, the whole canvas of the row; of AR models up to its last token
    reason: str  # "stop": its first end token or stop string; "length": nothing left to fill
    nfe: int
    text: str | None = None  # text not in an earlier step; all events' texts join to Result.text
    commit_step: np.ndarray | None = None  # [L_i] int32, as in `Trace`; None for continuous tokens
    logprobs: TokenLogprobs | None = None  # log-probabilities at L_i positions; None if the request asks for none


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """All rows are done."""

    tokens: np.ndarray  # [B, L] int64, right-padded
    reasons: tuple[str, ...]
    nfe: tuple[int, ...]
    forward_rows: tuple[int, ...]  # per row: rows in model forwards; a guided call counts twice
    tokens_fed: tuple[int, ...]  # per row: positions computed by all forwards, guidance included
    trace: Trace
    padding: int = 0  # further positions fed that belong to no row; counted by the verify loop
    draft_forwards: tuple[int, ...] = ()  # per row: forwards of a draft model
    reused: tuple[int, ...] = ()  # per row: prompt tokens whose K/V come from the prefix cache
    deviation: tuple[float, ...] = ()  # per row: bound on the total variation, by a relaxed acceptance
    latents: np.ndarray | None = None  # [B, L, d] float32, of models whose tokens are vectors
    seconds: Mapping[str, float] = field(default_factory=dict)  # per part of the continuous loop
    # Of the verify loop: seconds of all rounds, and of plain ones for the same tokens, None where these are not known.
    rounds_s: tuple[float, float | None] | None = None
