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

GIVEN = -1  # commit_step of a token that the request gave
NEVER = -2  # commit_step of a position that was never committed


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
    """

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
        self.lo = np.full(len(rows), -1)
        self._place()

    def __len__(self) -> int:
        return len(self.rows)

    # --- where the rows stand ---

    def _place(self) -> None:
        """Reads back which positions are open and moves every row to the block of its first open one."""
        self.open_host = self.open.cpu().numpy()
        self.first_open = np.where(self.open_host.any(1), self.open_host.argmax(1), self.total)
        block = (np.minimum(self.first_open, self.total - 1) - self.origin) // self.block_length
        # A row that ends with its prompt has no block; it stands at its end until it leaves.
        lo = self.origin + np.maximum(block, 0) * self.block_length
        moved = lo != self.lo
        self.entered = self.entered | moved
        if moved.any():
            self.lo, self.hi = lo, np.minimum(lo + self.block_length, self.total)
            self.end = self.hi if self.block_causal else self.total
            window = lo[:, None] + np.arange(self.block_length)
            window[window >= self.hi[:, None]] = self.length
            self.window = torch.from_numpy(window).to(self.tokens.device)
        self.eligible = self.open.gather(1, self.window)
        self.left = self.eligible.cpu().numpy().sum(1)

    @property
    def finished(self) -> np.ndarray:
        """[B] bool: nothing is open."""
        done: np.ndarray = self.first_open >= self.total
        return done

    def tokens_host(self) -> np.ndarray:
        """[B, L] int64 on the host; a view where the device is the CPU."""
        host: np.ndarray = self.tokens[:, : self.length].cpu().numpy()
        return host

    def first_committed(self, ids: tuple[int, ...]) -> np.ndarray:
        """[B] the first position where one of `ids` was committed (not given); `total` where there is none."""
        tokens = self.tokens_host()
        found = tokens == ids[0] if len(ids) == 1 else np.isin(tokens, ids)
        found &= self.commit_step[:, : self.length].cpu().numpy() >= 0
        first: np.ndarray = np.where(found.any(1), found.argmax(1), self.total)
        return first

    # --- the writers ---

    def commit(self, which: Tensor, tokens: Tensor, scores: Tensor) -> None:
        """Writes `tokens` [B, W] where `which` [B, W] holds and the position is open, and moves the rows on.

        Counts the forward that this commit ends. What is committed already stays as it is.
        """
        which = which & self.eligible
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
        for name in ("rows", "prompt", "total", "origin", "lo", "hi", "end", "step", "nfe", "entered", "left"):
            setattr(self, name, getattr(self, name)[rows])
        self.open_host, self.first_open = self.open_host[rows], self.first_open[rows]
