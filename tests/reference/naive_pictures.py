"""The published loops of Lumina-DiMOO and MMaDA, written from their sources, for one image.

Lumina-DiMOO, https://arxiv.org/abs/2510.06308 (with its max-logit cache); MMaDA, https://arxiv.org/abs/2505.15809.
Each half of guidance is a separate sequence of ids, computed whole and without a cache, unless the loop has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

Uniform = Callable[[int, int, str, int], np.ndarray]  # step, position in the row, purpose, how many


@dataclass
class Half:
    """One half of guidance: a prompt and the image after it."""

    model: LanguageModel
    prompt: list[int]
    codes: list[int]  # ids
    cache: KVCache | None = None
    logits: Tensor = field(default_factory=lambda: torch.empty(0))  # [T, codes] as they were last computed

    def read(self, image: list[int], which: np.ndarray | None = None) -> Tensor:
        """The logits [T, codes] of the codes; with `which` [T] only those positions are computed."""
        if which is not None and not which.any():
            return self.logits
        ids = torch.tensor([[*self.prompt, *image]])
        count = ids.shape[1]
        at = torch.arange(count)[None] if which is None else torch.from_numpy(which.nonzero()[0])[None]
        plan = Plan(
            ids.gather(1, at),
            at,
            at,
            Visible.bidirectional(),
            torch.tensor([count]),
            torch.arange(at.shape[1])[None],
        )
        if self.cache is None:
            self.cache = self.model.new_cache(1, count)
        fresh = self.model.forward(plan, self.cache).logits()[0][:, self.codes]
        if which is None:
            self.logits = fresh
        else:
            self.logits = self.logits.index_copy(0, at[0], fresh)
        return self.logits


def aligned(which: np.ndarray, count: int) -> np.ndarray:
    """The positions [count] that the first half chooses and both halves compute, counted from the end."""
    return np.pad(which, (max(count - len(which), 0), 0))[-count:]


def picture(
    halves: list[Half],
    image: list[int],
    mask: int,
    steps: int,
    uniform: Uniform,
    *,
    scale: float = 0.0,
    temperature: float = 1.0,
    published: str = "dimoo",
    cache: tuple[float, int, float] | None = None,
) -> list[list[int]]:
    """The image after every step.

    Args:
        halves: with the caption, and without it where `scale` (their s, in (1 + s) c - s u) is above 0.
        image: the ids after the prompt, masks in the cells.
        uniform: position counts from the first of the image.
        published: whose noise it is, "dimoo" or "mmada".
        cache: the share that is reused, the steps between refreshes, and the share of steps before the first.
    """
    image, history = list(image), []
    total, noise = image.count(mask), temperature
    which: np.ndarray | None = None
    codes, warm = halves[0].codes, int(steps * cache[2]) if cache else 0
    for step in range(steps):
        cells = [place for place, token in enumerate(image) if token == mask]
        if not cells:
            break
        every = cache is None or step <= warm or (step - warm) % cache[1] == 0
        logits = []
        for half in halves:
            own = None if every or which is None else aligned(which, len(half.prompt) + len(image))
            logits.append(half.read(image, own)[len(half.prompt) :][cells])
        mixed = logits[0] if scale == 0 else (1 + scale) * logits[0] - scale * logits[1]
        draws = np.stack([uniform(step, cell, "token", 0) for cell in cells])
        over = 1.0 if published == "mmada" else temperature
        chosen = (mixed.double() / over + torch.from_numpy(-np.log(-np.log(draws)))).argmax(1)
        confidence = mixed.softmax(1).gather(1, chosen[:, None])[:, 0].double().clamp(min=1e-20).log()
        ratio = (step + 1) / steps
        noise = noise * (1 - ratio) if published == "mmada" else temperature
        stay = int(np.floor(np.float32(total) * np.float32(math.cos(math.pi / 2 * ratio))))
        stay = min(len(cells) - 1, max(1, stay)) if step < steps - 1 else 0
        transfer = np.array([uniform(step, cell, "transfer", 0)[0] for cell in cells])
        rank = np.argsort((confidence + noise * torch.from_numpy(-np.log(-np.log(transfer)))).numpy(), kind="stable")
        for place in rank[stay:]:
            image[cells[place]] = codes[int(chosen[place])]
        history.append(list(image))
        if cache is not None:
            highest = halves[0].logits.amax(1).float().numpy()
            order = highest.argsort(kind="stable")
            which = np.zeros(len(highest), dtype=bool)
            which[order[: int((1 - cache[0]) * (len(highest) - 1) + 1e-6) + 1]] = True
    return history
