"""The canvas: the token rows being filled, and the only place that writes them.

It has two kinds of state. The contents of the rows (tokens, which are open, when and with what score each was
committed) are tensors on the model's device. The progress of the rows (active block, clock, forwards) is in small
arrays on the host, updated by one transfer a step; on a CPU that transfer is a view.

`Update` and `Revision` are what a step writes: tokens at some positions, and changes of committed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import or_
from typing import NoReturn, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.cuda_graphs.capture import CaptureError
from pardec.models.errors import SpecError

from ..batching import RowState
from ..host_transfer import download, to_host, upload
from ..trace import PROMPT, UNCOMMITTED


def rearrange(columns: Sequence[tuple[Tensor, Tensor | float]], window: Tensor, source: Tensor) -> None:
    """Copies the values in `columns` at block position `source[b, i]` to block position i, for `source` [B, W].

    Args:
        columns: tensors [B, L + 1], written in place, each with its value for a new mask, where `source` is -1.
        window: [B, W] the positions of the block.
    """
    new, at = source < 0, source.clamp(min=0)
    for tensor, blank in columns:
        moved = torch.where(new, blank, tensor.gather(1, window).gather(1, at))
        tensor.scatter_(1, window, moved.to(tensor.dtype))


def widened(values: Tensor, more: int, blank: float) -> Tensor:
    """`values` [B, L + 1] with `more` columns of `blank` before the last one, the scratch slot."""
    with torch.inference_mode(False), torch.no_grad():
        columns = values.new_full((len(values), more), blank)
        return torch.cat([values[:, :-1], columns, values[:, -1:]], 1)


@dataclass(frozen=True, slots=True)
class Update:
    """Tokens and scores for some positions: of the block, [B, W] each, or of the whole row, [B, L + 1]."""

    which: Tensor  # bool
    tokens: Tensor  # int64
    scores: Tensor  # float32

    def override(self, other: Update) -> Update:
        """The union of both updates; this one wins where they overlap."""
        tokens, scores = (
            torch.where(self.which, *both) for both in ((self.tokens, other.tokens), (self.scores, other.scores))
        )
        return Update(self.which | other.which, tokens, scores)

    def only(self, where: Tensor) -> Update:
        """The update restricted to `where` (bool, broadcast)."""
        return replace(self, which=self.which & where)


@dataclass(frozen=True, slots=True)
class Revision:
    """Changes to committed tokens of the active block; prompt tokens never change."""

    reopen: Tensor | None = None  # [B, W] bool: masked again; the step's choices there are dropped
    rewrite: Update | None = None
    hold: Tensor | None = None  # [B] bool: the row stays in its block although no position of it is open
    commit: Update | None = None  # at open positions, in addition to the step's choices, and overriding them
    source: Tensor | None = None  # [B, W] int64, applied last: the position whose token moves here; -1: a new mask

    def merge(self, other: Revision) -> Revision:
        """Combines both: reopening wins over rewriting, and a later rewrite over an earlier one."""
        if self.source is not None or other.source is not None:
            raise RuntimeError("only one revise stage may move tokens")
        rewrite, commit = (
            _join(*both, lambda one, two: two.override(one))
            for both in ((self.rewrite, other.rewrite), (self.commit, other.commit))
        )
        return Revision(_join(self.reopen, other.reopen, or_), rewrite, _join(self.hold, other.hold, or_), commit)

    def only(self, rows: Tensor) -> Revision:
        """The revision restricted to these rows ([B, 1] bool)."""
        return Revision(
            None if self.reopen is None else self.reopen & rows,
            None if self.rewrite is None else self.rewrite.only(rows),
            None if self.hold is None else self.hold & rows[:, 0],
            None if self.commit is None else self.commit.only(rows),
            None if self.source is None else torch.where(rows, self.source, _own(self.source)),
        )


@dataclass(frozen=True, slots=True)
class Span:
    """The span of each row whose open positions compete in the coming step. Arrays are on the host."""

    block_start: np.ndarray  # [B] where the span begins; caches use it as the start of the active block
    block_end: np.ndarray | Tensor  # [B] where it ends; a tensor's values may come later than the tensor
    block_started: np.ndarray  # [B] bool: a new block begins; caches refresh and schedules restart
    eligible: np.ndarray | None = None  # [B, W] bool in the canvas's window: competing positions; None: all
    progress: np.ndarray | None = None  # [B] if none is chosen, the best before this position is committed; None: any


def _mask_committed(wrong: np.ndarray, mask_id: int, rows: np.ndarray) -> SpecError:
    """The error for positions where the mask id was written as a token: `wrong` [B, L + 1]."""
    row, position = (int(index[0]) for index in wrong.nonzero())
    return SpecError(
        f"the mask token (id {mask_id}) was chosen for position {position} of row {rows[row]}",
        "to open a position again, a stage sets Revision.reopen",
    )


def _own(source: Tensor) -> Tensor:
    """[B, W]: each position's own index."""
    return torch.arange(source.shape[1], device=source.device).expand_as(source)


_T = TypeVar("_T")


def _join(one: _T | None, other: _T | None, both: Callable[[_T, _T], _T]) -> _T | None:
    return other if one is None else one if other is None else both(one, other)


_OPEN = -2  # a mask in `packed_tokens`; -1 there is a position of an image's condition
_CLOCKS = 64  # forwards with room in `clocks` at first
_ROWS = (
    "rows", "prompt", "total", "planned", "origin", "block_start", "block_end", "end", "step", "entry_step", "nfe",
    "block_started", "block_remaining", "first_open",
)  # fmt: skip
_TENSORS = ("tokens", "open", "commit_step", "commit_score", "serial", "window", "eligible")
_HOST = (
    *_ROWS, "num_masked", "total_steps", "hold_block", "_clocks", "given_host", "window_host", "active_host",
    "compete_host", "eligible_host",
)  # fmt: skip


CONTENTS = ("tokens", "open", "commit_step", "commit_score")  # the tensors that a commit writes


# The arrays that `Canvas._shorten` and `Canvas.committed_unread` leave on the device.
_OF_BLOCK = ("block_end", "end", "block_remaining", "active_host", "compete_host", "eligible_host")
_OF_TOKENS = ("tokens_host", "open_host", "first_open", "eligible_host")


class _Unread:
    """An array of the host; where its values are still on the device, reading it gets them from there.

    Python asks this object only while the canvas has no attribute of the name: the next transfer sets it.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, canvas: Canvas, owner: type) -> np.ndarray:
        return canvas._read_now(self.name)


class Canvas(RowState):
    """The tokens of B live rows. Tensors have one extra column L, a scratch slot for padding; it is never open.

    Attributes:
        tokens: [B, L + 1] int64.
        open: [B, L + 1] bool, the positions still to be committed.
        commit_step: [B, L + 1] int32, the forward that committed a position, or PROMPT or UNCOMMITTED.
        commit_score: [B, L + 1] float32, the score it was committed with.
        serial: [B, L + 1] int32, the number that a token keeps where edits move it, as in `Trace.serial`.
        rows: [B] index of each live row in the request.
        prompt, total: [B] where generation begins and the row ends. `planned`: [B] where it was to end at the start.
        block_start, block_end: [B] the active block, which contains the first open position or, if `sliding`, begins
            there.
        block_started: [B] bool, whether the row has just entered this block.
        end: [B] how far a forward may see: `total`, or the block's end in families that see nothing after it; there a
            sliding block ends one position earlier if outputs predict the next token.
        step: [B] the schedule's clock. `nfe`: [B] forwards the row took part in.
        entry_step: [B] the clock when the active block was entered.
        num_masked: [B] open positions at the start. `total_steps`: [B] steps of the whole schedule, 0 if it has none.
        hold_block: [B] bool, the row stays in a complete block, since a stage still revises it.
        block_remaining: [B] open positions in the active block.
        window: [B, W] int64 positions of the active block, L where outside of it. `eligible`: [B, W] bool. If
            `moving`, it covers all generated positions, and `active_host` [B, W] bool marks those of the block.
        tokens_host, open_host, window_host, eligible_host: the same on the host. `given_host`: [B, L + 1] bool.
    """

    per_row = (*_TENSORS, *_HOST)
    per_slot = ("rows", "_clocks")
    block_start: np.ndarray
    block_end, end, block_remaining = _Unread(), _Unread(), _Unread()
    active_host, compete_host, eligible_host = _Unread(), _Unread(), _Unread()
    tokens_host, open_host, first_open = _Unread(), _Unread(), _Unread()

    def __init__(
        self,
        rows: Sequence[Tensor],
        prompts: Sequence[int],
        *,
        mask_id: int,
        pad_id: int,
        block_length: int,
        absolute: bool = False,
        block_causal: bool = False,
        bounded: bool = False,
        sliding: bool = False,
        moving: bool = False,
        shift: int = 0,
        device: torch.device | str = "cpu",
        length: int = 0,
    ) -> None:
        """There are as many columns as the longest row has positions, and at least `length`.

        `bounded`: forwards see nothing after the active block. `sliding`: the block moves with the first open position.
        `moving`: `move` places the block.
        """
        total = np.array([len(row) for row in rows])
        self.length = max(int(total.max()), length)
        self.mask_id, self.pad_id, self.block_length, self.shift = mask_id, pad_id, block_length, shift
        tokens = torch.full((len(rows), self.length + 1), pad_id)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = row
        inside = torch.arange(self.length + 1) < torch.from_numpy(total)[:, None]
        generated = torch.arange(self.length + 1) >= torch.tensor(prompts)[:, None]
        self.tokens = tokens.to(device)
        self.open = (inside & generated & (tokens == mask_id)).to(device)
        self.commit_step = torch.where(self.open, UNCOMMITTED, PROMPT).to(torch.int32)
        self.commit_score = torch.zeros_like(self.tokens, dtype=torch.float32)
        self.serial = torch.arange(self.length + 1, dtype=torch.int32, device=device).repeat(len(rows), 1)
        self.rows = np.arange(len(rows))
        self.prompt, self.total, self.planned = np.array(prompts, dtype=np.int64), total, total
        self.absolute = absolute
        self.origin = np.zeros_like(self.prompt) if absolute else self.prompt.copy()
        self.block_causal, self.bounded = block_causal, bounded or block_causal
        self.sliding, self.moving = sliding, moving
        self.step, self.entry_step, self.nfe = np.zeros((3, len(rows)), dtype=np.int64)
        self._clocks = np.zeros((len(rows), _CLOCKS), dtype=np.int64)
        self._forwards = 0
        self.block_started = np.ones(len(rows), dtype=bool)
        self.hold_block = np.zeros(len(rows), dtype=bool)
        self.total_steps = np.zeros(len(rows), dtype=np.int64)
        self.stale = False  # whether `eligible` is not up to date: see `committed_on_device`
        self._unread: Callable[[], None] | None = None  # reads the tokens of the last step: see `committed_unread`
        self.serial_host: np.ndarray | None = None  # [B, L + 1] of a device's canvas that moves tokens
        self.revises = self.moves = False  # whether committed tokens of an active block may change, and move within it
        self.commit_order: Tensor | None = None  # [B, W] int64 on the host, where a cache needs it
        self.max_logits: Callable[[], np.ndarray] | None = None  # [B, L]: see `REUSES_PREDICTIONS` of `Cache.provides`
        self._later: list[tuple[Mapping[str, Tensor], Callable[[Mapping[str, np.ndarray]], None]]] = []  # reads
        self.block_start = self.block_end = np.full(len(rows), -1)
        self.bind()
        if moving:
            self.block_start, self.block_end, self.end = self.prompt.copy(), total, total
            self._lay_window(self.prompt[:, None] + np.arange(max(int((total - self.prompt).max()), 1)))
        self.given_host = ~download(self.open)
        self.num_masked = (~self.given_host).sum(1)
        self._update()

    def __len__(self) -> int:
        return len(self.rows)

    # --- the rows and their blocks ---

    def bind(self) -> None:
        """On a CPU, makes arrays that share the tensors' memory, so that reads and writes need no PyTorch dispatch."""
        self.on_host, self._each = self.tokens.device.type == "cpu", np.arange(len(self.rows))
        if self.on_host:
            self.tokens_host, self.open_host = self.tokens.numpy(), self.open.numpy()
            self._step_host, self._score_host = self.commit_step.numpy(), self.commit_score.numpy()

    def _on_device(self, values: np.ndarray) -> Tensor:
        """`values` on the device of the tokens; on a CPU they share memory."""
        return torch.from_numpy(values) if self.on_host else upload(values, self.tokens.device)

    def read_later(self, parts: Mapping[str, Tensor], then: Callable[[Mapping[str, np.ndarray]], None]) -> None:
        """Calls `then` with these tensors as arrays: at once on a CPU, else with the transfer of the coming commit."""
        if self.on_host:
            then(to_host(parts))
        else:
            self._later.append((parts, then))

    def _read(self, beside: Tensor | None = None) -> float:
        """Updates `tokens_host` and `open_host` by one transfer from the device, which also carries `beside`."""
        parts = {"packed": self.packed_tokens()}
        if self.moves:
            parts["serial"] = self.serial
        read = self._transfer(parts if beside is None else parts | {"beside": beside})
        return 0.0 if beside is None else float(read["beside"])

    def packed_tokens(self) -> Tensor:
        """[B, L + 1] int64: tokens, with another number where they are open."""
        return torch.where(self.open, _OPEN, self.tokens)

    @staticmethod
    def has_open(packed: np.ndarray) -> np.ndarray:
        """[B] bool: the rows of `packed_tokens`, on the host, that have open positions."""
        found: np.ndarray = (packed == _OPEN).any(1)
        return found

    def _transfer(self, parts: dict[str, Tensor]) -> Mapping[str, np.ndarray]:
        """Reads `parts`, and with them all that was to be read later."""
        later, self._later = self._later, []
        for number, (asked, _) in enumerate(later):
            parts |= {f"{number} {name}": tensor for name, tensor in asked.items()}
        read = to_host(parts)
        if "packed" in parts:
            self._unpack(read["packed"])
            self.serial_host = read.get("serial")
        for number, (asked, then) in enumerate(later):
            then({name: read[f"{number} {name}"] for name in asked})
        return read

    def _unpack(self, packed: np.ndarray) -> None:
        self.open_host = packed == _OPEN
        self.tokens_host = np.where(self.open_host, self.mask_id, packed)

    def _update(self, beside: Tensor | None = None, *, read: bool = False) -> float:
        """Reads back which positions are open and moves every row to the block of its first open position.

        With `read` that is read already, and `eligible` on the device is left as it is.
        """
        value = 0.0
        if not (self.on_host or read):  # there the arrays share the tensors' memory
            value = self._read(beside)
        elif beside is not None:
            value = beside.item()
        first, each = self.open_host.argmax(1), self._each
        self.first_open = np.where(self.open_host[each, first], first, self.total)
        beyond = (self.first_open >= self.block_end).any() or (
            self.sliding and (self.first_open > self.block_start).any()
        )
        if beyond and not self.moving:  # a moving block stays until `move` is called
            self._enter()
        self.eligible_host = self.open_host[each[:, None], self.window_host]
        if self.moving:
            self.eligible_host &= self.compete_host
        if not read:
            self.eligible = self._on_device(self.eligible_host)
        self.block_remaining = self.eligible_host.sum(1)
        return value

    def _enter(self) -> None:
        """Moves rows whose block is complete to the block of their first open position."""
        block = (np.minimum(self.first_open, self.total - 1) - self.origin) // self.block_length
        # A row that ends with its prompt has no block; its block is empty and at its end until the row leaves.
        start = self.first_open if self.sliding else self.origin + np.maximum(block, 0) * self.block_length
        block_start = np.where(self.hold_block, self.block_start, start)
        self.block_started = self.block_started | (block_start != self.block_start)
        self.entry_step = np.where(block_start != self.block_start, self.step, self.entry_step)
        self.block_start, self.block_end = block_start, np.minimum(block_start + self.block_length, self.total)
        self.end = self.block_end if self.bounded else self.total
        if self.sliding and self.bounded:  # the output of the last position would predict the one after the block
            self.end = np.maximum(self.block_end - self.shift, 1)
        self._lay_window(block_start[:, None] + np.arange(self.block_length))

    def _lay_window(self, positions: np.ndarray) -> None:
        """Sets the window to `positions` [B, W], without the positions at or after the end of the active block."""
        self.window_host = np.where(positions >= self.block_end[:, None], self.length, positions)
        self.window = self._on_device(self.window_host)
        self.active_host = self.compete_host = self.window_host < self.length

    def move(self, span: Span) -> None:
        """Makes `span` the active block of every row without `hold_block`; for canvases that are `moving`.

        Raises RuntimeError for a row with open positions none of which may compete.
        """
        end, hold = span.block_end, self.hold_block
        if isinstance(end, Tensor) and not self.on_host:
            return self._shorten(span, end)
        started = span.block_started & ~hold
        self.block_started = self.block_started | started
        self.entry_step = np.where(started, self.step, self.entry_step)
        end = np.minimum(end.numpy() if isinstance(end, Tensor) else end, self.total)
        start = np.where(hold, self.block_start, span.block_start)
        self._place(start, np.where(hold, self.block_end, end), span.eligible)
        if ((self.block_remaining == 0) & (self.first_open < self.total) & ~hold).any():
            raise RuntimeError("the block stage's span contains no open position of a row that has some")

    def _shorten(self, span: Span, end: Tensor) -> None:
        """Moves the ends of active blocks forward; the transfer of the coming commit tells the host where to."""
        start = np.where(self.hold_block, self.block_start, span.block_start)
        end = torch.where(self._on_device(self.hold_block), self._on_device(self.block_end), end)
        self.eligible = self.eligible & (self.window < end[:, None])
        self.read_later({"end": end}, lambda read: self._place(start, read["end"], span.eligible))
        for name in _OF_BLOCK:
            delattr(self, name)

    def _read_now(self, name: str) -> np.ndarray:
        """Gets the arrays that are still on the device, and returns the one called `name`."""
        if self.unread:
            self.read_tokens()
        else:
            self._transfer({})
        value: np.ndarray = vars(self)[name]
        return value

    def _place(self, start: np.ndarray, end: np.ndarray, eligible: np.ndarray | None) -> None:
        self.block_start, self.block_end = start, end
        self.end = end if self.bounded else self.total
        self.active_host = (self.window_host >= start[:, None]) & (self.window_host < end[:, None])
        self.compete_host = self.active_host if eligible is None else self.active_host & eligible
        self.eligible_host = self.compete_host & np.take_along_axis(self.open_host, self.window_host, 1)
        self.eligible = self._on_device(self.eligible_host)
        self.block_remaining = self.eligible_host.sum(1)

    def serials(self) -> np.ndarray:
        """[B, L + 1]: `serial` on the host."""
        return download(self.serial) if self.serial_host is None else self.serial_host

    @property
    def denoised_from(self) -> np.ndarray:
        """[B] the first position that attends to all of the active block, where finished text is causal: its start.

        With a sliding block of a shifted family it is the position before, whose output predicts the first token.
        """
        return np.maximum(self.block_start - self.shift, 0) if self.sliding else self.block_start

    @property
    def block_lengths(self) -> np.ndarray:
        """[B]: the block length of each row if decoded alone: at most `block_length` and the row's generated length."""
        own = self.planned - self.prompt
        lengths: np.ndarray = np.clip(self.block_length if self.absolute else own, 1, self.block_length)
        return np.broadcast_to(lengths, own.shape)

    @property
    def clocks(self) -> np.ndarray:
        """[B, n]: the clock at each forward so far."""
        return self._clocks[:, : self._forwards]

    @property
    def finished(self) -> np.ndarray:
        """[B] bool: the rows with no open position and nothing left to revise."""
        if self.unread:  # such a step completes no block
            return np.zeros(len(self), dtype=bool)
        finished: np.ndarray = (self.first_open >= self.total) & ~self.hold_block
        return finished

    @property
    def settled(self) -> np.ndarray:
        """[B] the first position whose token is open or may still change; all tokens before it are final."""
        if not self.revises:
            return self.first_open
        return np.where(self.finished, self.total, np.minimum(self.first_open, self.block_start))

    def first_committed(self, ids: tuple[int, ...]) -> np.ndarray:
        """[B] the first position where one of `ids` was committed (not given); `total` where there is none."""
        matches = self.tokens_host == ids[0] if len(ids) == 1 else np.isin(self.tokens_host, ids)
        if not matches.any():
            return self.total
        matches = matches & ~self.given_host & ~self.open_host
        first: np.ndarray = np.where(matches.any(1), matches.argmax(1), self.total)
        return first

    # --- the writers ---

    def commit(
        self,
        chosen: Update,
        *,
        fill: Update | None = None,
        revision: Revision | None = None,
        beside: Tensor | None = None,
        written: Callable[[], None] | None = None,
    ) -> float:
        """Writes `chosen` to open positions of the block, counts the forward, and updates each row's block.

        Only `revision` changes committed tokens.

        Args:
            fill: written as well, to open positions anywhere in the row.
            beside: [] a number that the host needs; the transfer of tokens also carries it.
            written: called when the tokens are written, before that transfer: see `read_later`.

        Returns:
            `beside`; 0 without one.

        Raises:
            SpecError: the mask id was written as a token. The canvas cannot be used any more.
        """
        which = chosen.which
        if revision is not None:
            which = which if revision.reopen is None else which & ~revision.reopen
            self._revise(revision)
        if fill is not None:
            self._fill(fill)
        self._write(which, chosen)
        if revision is not None:
            self._rearrange(revision)
        if written is not None:
            written()
        return self._advance(beside)

    def committed_on_device(self, packed: np.ndarray | None) -> None:
        """Like `commit`, for a captured step that has written the tensors.

        `packed` [B, L + 1] is what `DeviceCanvas.packed` made of them; None on a CPU, where arrays share their memory.
        `eligible` is stale afterwards, until `renew_eligible`.
        """
        if packed is not None:
            self._unpack(packed)
        self._advance(None, read=True)
        self.stale = True

    def committed_unread(self, count: np.ndarray, read: Callable[[], None]) -> None:
        """Like `committed_on_device`, for a step that commits `count` [B] tokens and completes no block.

        `read` is called when the tokens are needed, or by `read_tokens`; it calls `receive`.
        """
        self._count()
        self.block_remaining = self.block_remaining - count
        self.stale, self._unread, self._first_read = True, read, self.first_open
        for name in _OF_TOKENS:
            delattr(self, name)

    @property
    def unread(self) -> bool:
        """Whether the host has not read the tokens of the last step."""
        return self._unread is not None

    def read_tokens(self) -> None:
        """Reads the tokens of the last step, if the host has not yet."""
        if (read := self._unread) is not None:
            self._unread = None
            read()

    def leave_unread(self) -> None:
        """Drops the pending read of the last step's tokens; the canvas cannot be used afterwards."""
        self._unread = None

    def receive(self, packed: np.ndarray) -> None:
        """Takes the contents of the rows, as in `committed_on_device`, after `committed_unread`."""
        self._unpack(packed)
        self._update(read=True)
        self._demand_no_mask()

    @property
    def first_known(self) -> np.ndarray:
        """[B] a lower bound of the first open position: that position itself, unless tokens are unread."""
        return self._first_read if self.unread else self.first_open

    def renew_eligible(self) -> None:
        """Uploads `eligible` again if captured steps left it out of date."""
        if self.stale:
            self.eligible, self.stale = self._on_device(self.eligible_host), False

    def _advance(self, beside: Tensor | None, *, read: bool = False) -> float:
        """Counts the forward and updates each row's block; with `read` the arrays have the rows' contents already."""
        self._count()
        value = self._update(beside, read=read)
        self._demand_no_mask()
        return value

    def _count(self) -> None:
        """Counts the forward."""
        if self._forwards == self._clocks.shape[1]:
            self._clocks = np.concatenate([self._clocks, np.zeros_like(self._clocks)], 1)
        self._clocks[:, self._forwards] = self.step
        self._forwards += 1
        self.block_started = np.zeros(len(self.rows), dtype=bool)
        self.step = self.step + 1
        self.nfe = self.nfe + 1

    def _demand_no_mask(self) -> None:
        """Raises SpecError if the mask id was written as a token."""
        wrong = (self.tokens_host == self.mask_id) & ~(self.open_host | self.given_host)
        if wrong.any():
            raise _mask_committed(wrong, self.mask_id, self.rows)

    def draft(self, chosen: Update) -> np.ndarray:
        """Writes tokens of hypotheses, which the coming forward checks and commits; their rows advance one step.

        Returns the rows [B] bool that have such tokens.
        """
        moved = np.zeros(len(self), dtype=bool)

        def advance(read: Mapping[str, np.ndarray]) -> None:
            moved[:] = read["moved"]
            self.step, self.block_started = self.step + moved, self.block_started & ~moved

        self.read_later({"moved": (chosen.which & self.eligible).any(1)}, advance)
        self._write(chosen.which, chosen)
        self._update()
        return moved

    @contextmanager
    def held(self) -> Iterator[None]:
        """Every block stays where it is while tokens are drafted, and slides to the first open position afterwards."""
        before, self.hold_block = self.hold_block, np.ones(len(self), dtype=bool)
        try:
            yield
        finally:
            self.hold_block = before
            self._update()

    def adopt(self, contents: Mapping[str, Tensor], packed: np.ndarray, steps: np.ndarray) -> None:
        """Replaces the rows by hypotheses that a `DeviceCanvas` has made of them, `steps` [B] further on the clock.

        `packed` [B, L + 1] are its `packed_tokens`.
        """
        for name, tensor in contents.items():
            setattr(self, name, tensor)
        self.rows_changed()
        self.step, self.block_started = self.step + steps, self.block_started & (steps == 0)
        self._unpack(packed)
        self._update(read=True)
        self.eligible = self._on_device(self.eligible_host)

    def _write(self, which: Tensor, chosen: Update) -> None:
        if self.on_host:  # the same memory, without a dispatch per operation
            row, column = (which.numpy() & self.eligible_host).nonzero()
            at = row, self.window_host[row, column]
            self.tokens_host[at] = chosen.tokens.numpy()[row, column]
            self._step_host[at] = self.nfe[row]
            self._score_host[at] = chosen.scores.numpy()[row, column]
            self.open_host[at] = False
        else:
            self._put(which & self.eligible, chosen.tokens, self._forward(), chosen.scores, hold_block=False)

    def _forward(self) -> Tensor:
        """[B, 1]: the index of the current forward, as recorded in `commit_step`."""
        return self._on_device(self.nfe.astype(np.int32))[:, None]

    def _put(
        self, which: Tensor, tokens: Tensor | int, forward: Tensor | int, scores: Tensor | float, *, hold_block: bool
    ) -> None:
        """Writes to positions `which` [B, W] of the block; `hold_block`: whether they are open afterwards."""
        pairs = (
            (self.tokens, tokens),
            (self.commit_step, forward),
            (self.commit_score, scores),
            (self.open, hold_block),
        )
        for tensor, value in pairs:
            written = torch.where(which, value, tensor.gather(1, self.window))
            tensor.scatter_(1, self.window, written.to(tensor.dtype))

    def _revise(self, revision: Revision) -> None:
        self.hold_block = np.zeros(len(self), dtype=bool)
        if revision.hold is not None:
            self.read_later({"hold_block": revision.hold}, vars(self).update)
        ours, new = self.committed, revision.rewrite
        if new is not None:
            self._put(new.which & ours, new.tokens, self._forward(), new.scores, hold_block=False)
        if revision.reopen is not None:
            self._put(revision.reopen & ours, self.mask_id, UNCOMMITTED, 0.0, hold_block=True)

    def _rearrange(self, revision: Revision) -> None:
        if revision.commit is not None:
            self._write(revision.commit.which, revision.commit)
        if (source := revision.source) is not None:
            # No other mask of the row has this serial number: it differs by forward and by position.
            number = torch.from_numpy((self.total + self.nfe * source.shape[1])[:, None] + np.arange(source.shape[1]))
            marks = (
                (self.tokens, self.mask_id),
                (self.open, True),
                (self.commit_step, UNCOMMITTED),
                (self.commit_score, 0),
            )
            rearrange((*marks, (self.serial, number.to(source.device))), self.window, source)

    def _fill(self, fill: Update) -> None:
        which = fill.which & self.open
        self.tokens.copy_(torch.where(which, fill.tokens, self.tokens))
        self.commit_step.copy_(torch.where(which, self._forward(), self.commit_step))
        self.commit_score.copy_(torch.where(which, fill.scores, self.commit_score))
        self.open &= ~which

    @property
    def committed(self) -> Tensor:
        """[B, W] bool: the positions of the active block that a forward committed, without prompt tokens."""
        committed = self.commit_step.gather(1, self.window) >= 0
        return committed & self._on_device(self.active_host) if self.moving else committed

    def close(self, rows: np.ndarray) -> None:
        """Ends these rows ([B] bool): their open positions become padding and stay uncommitted."""
        self._pad(self.open_host & rows[:, None])

    def cut(self, total: np.ndarray) -> None:
        """Ends rows at `total` [B], after their active blocks; open positions from there on become padding."""
        behind = self.open_host & (np.arange(self.length + 1) >= total[:, None])
        self.total, self.num_masked = total, self.num_masked - behind.sum(1)
        self.block_end, self.end = np.minimum(self.block_end, total), np.minimum(self.end, total)
        self._pad(behind)

    def begin_short(self, masks: int) -> None:
        """Ends rows after `masks` masks, except rows with given tokens after the prompt; `grow` lengthens them."""
        order = np.arange(self.length + 1)
        generated = (order >= self.prompt[:, None]) & (order < self.total[:, None])
        whole = (generated & ~self.open_host).any(1)
        self.cut(np.where(whole, self.total, np.minimum(self.total, self.prompt + masks)))
        self._enter()
        self._update()

    def grow(self, at: np.ndarray, count: np.ndarray) -> None:
        """Inserts `count` [B] masks after the positions `at` [B]; later tokens move. For a fixed grid of blocks."""
        order = np.arange(self.length + 1)
        source = np.where(order > at[:, None], order - count[:, None], order)
        source[(order > at[:, None]) & (order <= (at + count)[:, None])] = -1
        source[:, -1] = self.length
        moved = upload(source, self.tokens.device)
        # Other masks of the row have other serial numbers: they differ by forward and by position.
        numbers = (self.length + self.nfe * self.length)[:, None] + order
        marks = (
            (self.tokens, self.mask_id),
            (self.open, True),
            (self.commit_step, UNCOMMITTED),
            (self.commit_score, 0),
        )
        columns: Sequence[tuple[Tensor, Tensor | float]] = (*marks, (self.serial, upload(numbers, self.tokens.device)))
        for tensor, blank in columns:
            tensor.copy_(torch.where(moved < 0, blank, tensor.gather(1, moved.clamp(min=0))))
        self.given_host = np.take_along_axis(self.given_host, np.maximum(source, 0), 1) & (source >= 0)
        self.total, self.num_masked = self.total + count, self.num_masked + count
        if not self.on_host:  # the same on the host, which need not wait
            at = np.maximum(source, 0)
            self.open_host = np.where(source < 0, True, np.take_along_axis(self.open_host, at, 1))
            self.tokens_host = np.where(source < 0, self.mask_id, np.take_along_axis(self.tokens_host, at, 1))
            if self.serial_host is not None:
                self.serial_host = np.where(source < 0, numbers, np.take_along_axis(self.serial_host, at, 1))
        self._update(read=True)
        started = self.block_started
        self._enter()
        self.block_started = self.block_started | started
        self._update(read=True)
        self.eligible = self._on_device(self.eligible_host)

    def _pad(self, which: np.ndarray) -> None:
        """Open positions `which` [B, L + 1] become padding and stay uncommitted."""
        on_device = self._on_device(which)
        self.given_host = self.given_host | which
        self.tokens.masked_fill_(on_device, self.pad_id)
        self.open &= ~on_device
        self._update()

    def set_clock(self, step: np.ndarray) -> None:
        """Sets the clock of rows that have just entered a block to `step` [B], if that is later than the clock."""
        self.step = np.where(self.block_started, np.maximum(self.step, step), self.step)
        self.entry_step = np.where(self.block_started, self.step, self.entry_step)

    def advance_clock(self, idle: np.ndarray) -> None:
        """Moves the clock over steps at which a schedule commits nothing."""
        self.step = self.step + idle

    def keep(self, rows: np.ndarray) -> None:
        if not self.on_host:
            self.tokens_host, self.open_host = self.tokens_host[rows], self.open_host[rows]
            self.serial_host = None if self.serial_host is None else self.serial_host[rows]
            where = self._on_device(rows)
            self._later = [({name: each[where] for name, each in parts.items()}, then) for parts, then in self._later]
        super().keep(rows)

    def put(self, where: np.ndarray, other: Self) -> None:
        super().put(where, other)
        if not self.on_host:
            self._read()

    def rows_changed(self) -> None:
        with torch.inference_mode(False), torch.no_grad():  # a step's inference tensors cannot be written after it
            for name in _TENSORS:
                if (tensor := getattr(self, name)).is_inference():
                    setattr(self, name, tensor.clone())
        self.bind()

    def before_join(self, where: np.ndarray, other: Canvas) -> None:
        """Adds the columns that `other` has more; it has no fewer, and has had no forward."""
        if more := other.length - self.length:
            blanks = {"tokens": self.pad_id, "open": False, "commit_step": PROMPT, "commit_score": 0, "serial": 0}
            for name, blank in blanks.items():
                setattr(self, name, widened(getattr(self, name), more, blank))
            self.given_host = np.pad(self.given_host, ((0, 0), (0, more)), constant_values=True)
            self.window_host = np.where(self.window_host == self.length, other.length, self.window_host)
            self.window, self.length = self._on_device(self.window_host), other.length
        past = self._forwards - int(np.delete(self.nfe, where).max(initial=0))  # forwards without any row that stays
        self._clocks = np.roll(self._clocks, -past, axis=1)
        self._forwards -= past
        self._clocks[where] = -1


class DeviceCanvas(Canvas):
    """A canvas as a captured step sees it: tensors alone. Other attributes are on the host, and reading one is refused.

    It has the rows of a memory, of which a request may use fewer; the others have no open position.
    """

    def __init__(self, contents: Mapping[str, Tensor], window: Tensor, nfe: Tensor, mask_id: int) -> None:
        """`contents`: the tensors `CONTENTS`; `nfe` [R] int64: the index of the forward."""
        self.tokens, self.open, self.commit_step, self.commit_score = (contents[name] for name in CONTENTS)
        self.window, self._nfe, self.mask_id = window, nfe, mask_id
        self.eligible = self.open.gather(1, window)
        self.revises = self.on_host = False
        self.keys: Callable[[Tensor], Tensor] | None = None  # positions [R, W] -> keys of the tokens' noise, [R, W]

    def __getattr__(self, name: str) -> NoReturn:
        raise CaptureError(f"a stage reads {name} of the canvas, which only the host has")

    def _read_now(self, name: str) -> NoReturn:
        self.__getattr__(name)

    def write(self, chosen: Update) -> None:
        """Commits `chosen` where positions are eligible."""
        self._write(chosen.which, chosen)

    def packed(self, highest: Tensor) -> Tensor:
        """[R * (L + 1) + 1] int64: tokens and open positions, for `committed_on_device`, then the bits of a number."""
        return torch.cat((self.packed_tokens().flatten(), highest.double().view(1).view(torch.int64)))

    def _forward(self) -> Tensor:
        return self._nfe[:, None]
