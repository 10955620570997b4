"""Draws a window of tokens, each from what the target said of its place in the round before, and verifies them so.

Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding,
https://arxiv.org/abs/2410.01699
MC-SJD: Maximal Coupling Speculative Jacobi Decoding, https://arxiv.org/abs/2510.24211 (refresh=coupled, gumbel)

    x_i ~ q_i = p(. | text, x'_1 .. x'_(i-1)),  x' the tokens of the round before;  accepted iff u q_i(x_i) < p_i(x_i)
    behind the first rejection every x_i is drawn anew from p_i, its q_i in the next round

The law behind node i is of the place where node i + 1 stands: the token and the q that the new draw is coupled with
are that node's.

Fresh tokens of a picture are copied from the cell to the left, in a window of 32, where text has random ones in 16:
the longer window pays once neighbours look alike and draws are coupled.

Deviates from the papers: rows go at their own pace, and fresh tokens count as point masses, since none but `random`
ones were drawn from a law; `uniform` gives those theirs, which tells with a handful of tokens only.
Exact: greedy, and distribution with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...ops.redraw import coupled, perturbed
from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, Outcome, Uniforms
from ..uniforms import sample_index
from ._window import Init, ahead, fresh, refuse_flat, refuse_narrow

_TEXT, _PICTURE = 16, 32  # the window where none is given


@dataclass(slots=True)
class Places:
    """The newest law of the places behind each row's text, K of them, and what stood there in the round before."""

    distribution: Tensor  # [B, K, V] float32
    known: np.ndarray  # [B] on the host: the first so many have a law
    old: Tensor  # [B, K] int64, of all that have a law but the last
    q: Tensor  # [B, K, V] float32: what `old` was drawn from
    point: Tensor  # [B, K] bool: it was not drawn from a law


@register("sjd", stage="draft", paper="arXiv:2410.01699", exact="greedy", checked="golden/llamagen joint")
@dataclass(frozen=True)
class Sjd(Drafter):
    window: Annotated[
        int | None, "tokens fed in a forward, the last known one included; none: 32 of a picture, 16 of text"
    ] = None
    refresh: Annotated[Literal["coupled", "independent", "gumbel"], "independent: as first published"] = "coupled"
    init: Annotated[
        Init | None,
        "fresh guesses: any token, any of the prompt's, the one before, what followed before, or the token of the cell "
        "to the left or above; none: left in an image, random in text",
    ] = None
    uniform: Annotated[bool, "with init=random: fresh guesses are tested as draws from the uniform law"] = False

    def __post_init__(self) -> None:
        if self.window is not None:
            refuse_narrow("sjd", self.window)
        if self.uniform and self.init not in (None, "random"):
            raise SpecError(f"sjd: guesses by init={self.init} are not drawn uniformly", hint="leave uniform out")

    def width(self, model: LanguageModel) -> int:
        refuse_flat("sjd", self.init, model)
        if self.window is not None:
            return self.window
        return _TEXT if model.imaging is None else _PICTURE

    def opening(self, model: LanguageModel) -> Init:
        """What fresh guesses are."""
        if self.init is not None:
            return self.init
        return "random" if self.uniform or model.imaging is None else "left"

    def start(self, context: DecodeContext) -> Places:
        batch, device = len(context.text), context.text.device
        token = torch.zeros(batch, 0, dtype=torch.int64, device=device)
        distribution = torch.zeros(batch, 0, context.model.vocab_size, device=device)
        return Places(distribution, np.zeros_like(context.text.length), token, distribution, token.bool())

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Places) -> Draft:
        counts = np.minimum(room, self.width(context.model) - 1)
        most = int(counts.max(initial=0))
        known = np.minimum(state.known, most)
        anew, distribution = self._anew(context, uniforms, state)[:, :most], state.distribution[:, :most]
        missing = most - anew.shape[1]
        tokens = fresh(self.opening(context.model), pad(anew, (0, missing)), known, context, uniforms)
        if not known.any() and not self.uniform:
            return Draft.chain(context.text, tokens, counts)
        new = torch.arange(-1, most, device=tokens.device) >= torch.from_numpy(known).to(tokens.device)[:, None]
        q = pad(distribution, (0, 0, 1, missing))
        if self.uniform:
            q = q.masked_fill(new[..., None], 1 / q.shape[-1])
        return Draft.chain(context.text, tokens, counts, q=q, point=None if self.uniform else new)

    def _anew(self, context: DecodeContext, uniforms: Uniforms, state: Places) -> Tensor:
        """[B, K]: a token from each law; meaningless where there is none."""
        p = state.distribution
        place = torch.arange(p.shape[1], device=p.device)
        positions = place + torch.from_numpy(context.text.length).to(p.device)[:, None]
        if self.refresh == "gumbel":  # noise of a place, which nothing else is decided by
            return perturbed(p, uniforms.noise(positions, "refresh", p.shape[-1], fixed=True))
        # Not so these: a second draw coupled by the same numbers would not be from its law, given the first.
        u, keep = uniforms.noise(positions, "refresh", 2).unbind(-1)
        if self.refresh == "independent":
            return sample_index(p, u)
        had = place < torch.from_numpy(state.known - 1).to(p.device)[:, None]
        each = (p, state.old, state.q, state.point, had, keep, u)
        return coupled(*(values.flatten(0, 1) for values in each)).view_as(state.old)

    def observe(self, outcome: Outcome, context: DecodeContext, state: Places) -> None:
        draft, gained = outcome.draft, outcome.gained
        state.known = np.maximum(draft.sizes - gained, 0)
        most = int(state.known.max())
        state.distribution = ahead(outcome.distributions.probs, gained, most)
        state.old = ahead(draft.tokens, gained + 1, most)
        state.q = state.distribution if draft.q is None else ahead(draft.q, gained + 1, most)
        if draft.point is not None:
            state.point = ahead(draft.point, gained + 1, most)
        else:
            state.point = torch.full_like(state.old, draft.q is None, dtype=torch.bool)
