"""What a loop tells while it runs. Arrays are on the host; rows are the request's, not the batch's present ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pardec.samplers.trace import Trace


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
    """One step of the masked loop: a forward for each live row, and what was committed."""

    number: int  # from 0
    rows: np.ndarray  # [n] live rows
    nfe: np.ndarray  # [n] forwards each took part in so far
    tokens: np.ndarray  # [n, L] int64 as of now
    open: np.ndarray  # [n, L] bool
    committed: np.ndarray  # [n, L] bool, by this step
    settled: np.ndarray  # [n] the first position that is open or may still change; all before it is final
    revised: np.ndarray | None = None  # [n, L] bool: taken back or overwritten by this step, where a stage may do that
    text: tuple[str, ...] | None = None  # per live row: the text that became certain; put in by `Model.stream`


@dataclass(frozen=True, slots=True)
class Accepted(Event):
    """One round of the verify loop: how many tokens each row gained, bonus included."""

    number: int
    rows: np.ndarray  # [n]
    gained: np.ndarray  # [n]


@dataclass(frozen=True, slots=True)
class RowFinished(Event):
    """A row is done; it costs nothing from here on."""

    row: int
    tokens: np.ndarray  # [L_i] int64, the whole canvas of the row
    reason: str  # "stop": its first end token; "length": nothing left to fill
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
