"""The rows of an autoregressive request: committed tokens that grow to the right, each row at its own pace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..batching import RowState
from ..host_transfer import download, upload
from ..trace import PROMPT, UNCOMMITTED


class Sequences(RowState):
    """The text of an autoregressive request, changed only by `commit`. Finished rows are removed.

    Attributes, one entry a live row, arrays on the host:
        rows: index in the request.
        length: committed tokens, the prompt included; the K/V of all but the last one are in the cache.
        prompt: of these, the length of the prompt.
        limit: the length at which the row is full.
        nfe: forwards the row took part in, which is also the index of its next round.
        tokens: [B, C] int64, on the device; `pad_id` after `length`, -1 where an image's condition is.
    """

    newest: Tensor | None
    per_slot = ("rows",)
    per_row = ("rows", "prompt", "length", "limit", "nfe", "host", "commit_step", "commit_score")

    def __init__(
        self, prompts: Sequence[Tensor], limits: Sequence[int], *, pad_id: int, device: torch.device | str = "cpu"
    ) -> None:
        self.rows = np.arange(len(prompts))
        self.prompt = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self.length = self.prompt.copy()
        self.limit = np.array(limits, dtype=np.int64)
        self.nfe = np.zeros_like(self.rows)
        self.pad_id = pad_id
        self.fills = {"host": pad_id, "commit_step": UNCOMMITTED}
        self.host = np.full((len(prompts), int(self.limit.max())), pad_id, dtype=np.int64)
        self.commit_step = np.full(self.host.shape, UNCOMMITTED, dtype=np.int32)
        self.commit_score = np.zeros(self.host.shape, dtype=np.float32)
        for row, prompt in enumerate(prompts):
            self.host[row, : len(prompt)] = download(prompt)
            self.commit_step[row, : len(prompt)] = PROMPT
        self.device = torch.device(device)
        self.rows_changed()
        self.device = self.tokens.device

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def remaining(self) -> np.ndarray:
        """[B]: how many more tokens fit in each row."""
        return self.limit - self.length

    @property
    def last(self) -> Tensor:
        """[B] int64: the last committed token of each row, whose K/V are not in the cache yet."""
        if self.newest is not None:
            return self.newest
        return upload(self.host[np.arange(len(self.rows)), self.length - 1], self.device)

    def at(self, positions: np.ndarray) -> Tensor:
        """[B] int64: each row's token at `positions` [B]."""
        return upload(self.host[np.arange(len(self.rows)), positions], self.device)

    def row(self, at: int) -> np.ndarray:
        """The committed tokens of the row at index `at`: a view of `host`."""
        return self.host[at, : self.length[at]]

    def commit(
        self,
        tokens: np.ndarray,
        counts: np.ndarray,
        scores: np.ndarray,
        fresh: tuple[np.ndarray, ...] | None = None,
        *,
        written: bool = False,
    ) -> None:
        """Appends the first counts[b] of `tokens` [B, D], with `scores` [B, D], as written by the forward counted last.

        `fresh` are the rows and the columns of these tokens, where the caller has them; `written`: a graph has
        written them to the tensor.
        """
        fresh = (np.arange(tokens.shape[1]) < counts[:, None]).nonzero() if fresh is None else fresh
        row, column = fresh
        where = self.length[row] + column
        at = row, where
        self.host[at] = own = tokens[fresh]
        self.commit_step[at] = self.nfe[row] - 1
        self.commit_score[at] = scores[fresh]
        self.newest = None
        if self.apart and not written:
            new = upload(np.stack((row, where, own)), self.device)
            self.tokens[new[0], new[1]] = new[2]
        self.length += counts

    def rows_changed(self) -> None:
        self.tokens = upload(self.host, self.device)
        self.apart = self.device.type != "cpu"  # whether `tokens` has memory of its own, beside `host`
        self.newest = None  # `last`, where it is on the device already

    def move_tokens(self, tokens: Tensor) -> None:
        """Replaces the tensor by its copy in other memory."""
        self.tokens, self.apart = tokens, True
