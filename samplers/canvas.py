"""The canvas: the token rows being filled, and the only place that writes them.

Two kinds of state. What the rows hold (tokens, which are open, when and how surely each was committed) are tensors on
the model's device. Where the rows stand (active block, clock, forwards) are small arrays on the host, brought up to
date from one transfer a step; on a CPU that transfer is a view.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import CapacityError

GIVEN = -1  # commit_step of a token that the request gave
NEVER = -2  # commit_step of a position that was never committed

_MOST = np.iinfo(np.int16).max  # what commit_step can count
_ROWS = ("rows", "prompt", "total", "origin", "lo", "hi", "end", "step", "nfe", "entered", "left", "first_open")
_HOST = (*_ROWS, "given_host", "window_host", "eligible_host")


class Canvas:
    """B live rows. Column L of every tensor is a bin: block positions outside a row point there and it is never open.

    Attributes:
        tokens: [B, L + 1] int64.
        open: [B, L + 1] bool, what is still to be committed.
        commit_step: [B, L + 1] int16, the forward that committed a position, or GIVEN or NEVER.
        commit_score: [B, L + 1] float32, its score then.
        rows: [B] index of each live row in the request.
        prompt, total: [B] where generation begins and the row ends.
        lo, hi: [B] the active block, the one with the first open position. `entered`: [B] bool, not asked about yet.
        end: [B] how far a forward may see: `total`, or the block's end in block-causal families.
        step: [B] the schedule's clock. `nfe`: [B] forwards the row took part in.
        left: [B] open positions in the active block.
        window: [B, W] int64 positions of the active block, L where outside of it. `eligible`: [B, W] bool.
        tokens_host, open_host, window_host, eligible_host: the same on the host. `given_host`: [B, L + 1] bool.
    """

    lo: np.ndarray
    hi: np.ndarray
    end: np.ndarray

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
        shift: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        total = np.array([len(row) for row in rows])
        if total.max() > _MOST:
            raise CapacityError(f"a row of {total.max()} positions is longer than the {_MOST} that a canvas can record")
        self.length = int(total.max())
        self.mask_id, self.pad_id, self.block_length, self.shift = mask_id, pad_id, block_length, shift
        tokens = torch.full((len(rows), self.length + 1), pad_id)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = row
        inside = torch.arange(self.length + 1) < torch.from_numpy(total)[:, None]
        generated = torch.arange(self.length + 1) >= torch.tensor(prompts)[:, None]
        self.tokens = tokens.to(device)
        self.open = (inside & generated & (tokens == mask_id)).to(device)
        self.commit_step = torch.where(self.open, NEVER, GIVEN).to(torch.int16)
        self.commit_score = torch.zeros_like(self.tokens, dtype=torch.float32)
        self.rows = np.arange(len(rows))
        self.prompt, self.total = np.array(prompts, dtype=np.int64), total
        self.origin = np.zeros_like(self.prompt) if absolute else self.prompt.copy()
        self.block_causal = block_causal
        self.step = np.zeros(len(rows), dtype=np.int64)
        self.nfe = np.zeros(len(rows), dtype=np.int64)
        self.entered = np.ones(len(rows), dtype=bool)
        self.lo = self.hi = np.full(len(rows), -1)
        self.given_host = ~self.open.cpu().numpy()
        self._place()

    def __len__(self) -> int:
        return len(self.rows)

    # --- where the rows stand ---

    def _read(self) -> None:
        """Brings `tokens_host` and `open_host` up to date: views on a CPU, one transfer elsewhere."""
        if self.tokens.device.type == "cpu":
            self.tokens_host, self.open_host = self.tokens.numpy(), self.open.numpy()
        else:
            packed = torch.where(self.open, -1, self.tokens).cpu().numpy()
            self.open_host = packed < 0
            self.tokens_host = np.where(self.open_host, self.mask_id, packed)

    def _place(self) -> None:
        """Reads back which positions are open and moves every row to the block of its first open one."""
        self._read()
        first = self.open_host.argmax(1)
        self.first_open = np.where(self.open_host[np.arange(len(first)), first], first, self.total)
        if (self.first_open >= self.hi).any():
            self._enter()
        self.eligible_host = self.open_host[np.arange(len(first))[:, None], self.window_host]
        self.eligible = torch.from_numpy(self.eligible_host).to(self.tokens.device)
        self.left = self.eligible_host.sum(1)

    def _enter(self) -> None:
        """Moves rows whose block is complete to the block of their first open position."""
        block = (np.minimum(self.first_open, self.total - 1) - self.origin) // self.block_length
        # A row that ends with its prompt has no block; it stands at its end until it leaves.
        lo = self.origin + np.maximum(block, 0) * self.block_length
        self.entered = self.entered | (lo != self.lo)
        self.lo, self.hi = lo, np.minimum(lo + self.block_length, self.total)
        self.end = self.hi if self.block_causal else self.total
        self.window_host = lo[:, None] + np.arange(self.block_length)
        self.window_host[self.window_host >= self.hi[:, None]] = self.length
        self.window = torch.from_numpy(self.window_host).to(self.tokens.device)

    @property
    def finished(self) -> np.ndarray:
        """[B] bool: nothing is open."""
        done: np.ndarray = self.first_open >= self.total
        return done

    def first_committed(self, ids: tuple[int, ...]) -> np.ndarray:
        """[B] the first position where one of `ids` was committed (not given); `total` where there is none."""
        found = self.tokens_host == ids[0] if len(ids) == 1 else np.isin(self.tokens_host, ids)
        found = found & ~self.given_host & ~self.open_host
        first: np.ndarray = np.where(found.any(1), found.argmax(1), self.total)
        return first

    # --- the writers ---

    def commit(self, which: Tensor, tokens: Tensor, scores: Tensor) -> None:
        """Writes `tokens` [B, W] where `which` [B, W] holds and the position is open, and moves the rows on.

        Counts the forward that this commit ends. What is committed already stays as it is.
        """
        which = which & self.eligible
        if which.device.type == "cpu":  # the same memory, without a dispatch an operation
            row, column = which.numpy().nonzero()
            at = row, self.window_host[row, column]
            self.tokens.numpy()[at] = tokens.numpy()[row, column]
            self.commit_step.numpy()[at] = self.nfe[row]
            self.commit_score.numpy()[at] = scores.numpy()[row, column]
            self.open.numpy()[at] = False
        else:
            forward = torch.from_numpy(self.nfe.astype(np.int16)).to(which.device)[:, None]
            for held, new in ((self.tokens, tokens), (self.commit_step, forward), (self.commit_score, scores)):
                held.scatter_(1, self.window, torch.where(which, new, held.gather(1, self.window)))
            self.open.scatter_(1, self.window, self.eligible & ~which)
        self.entered = np.zeros(len(self), dtype=bool)
        self.step = self.step + 1
        self.nfe = self.nfe + 1
        self._place()

    def close(self, rows: np.ndarray) -> None:
        """Ends these rows ([B] bool): what is open in them becomes padding and stays uncommitted."""
        which = self.open & torch.from_numpy(rows).to(self.open.device)[:, None]
        self.tokens.masked_fill_(which, self.pad_id)
        self.open &= ~which
        self._place()

    def skip(self, idle: np.ndarray) -> None:
        """Moves the clock over steps at which a schedule owes nothing."""
        self.step = self.step + idle

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows ([n] indices), in this order."""
        index = torch.from_numpy(rows).to(self.tokens.device)
        for name in ("tokens", "open", "commit_step", "commit_score", "window", "eligible"):
            setattr(self, name, getattr(self, name)[index])
        for name in _HOST:
            setattr(self, name, getattr(self, name)[rows])
        self._read()
