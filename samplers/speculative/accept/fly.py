"""Keeps a rejected token if the target is unsure there and the tokens after it pass.

Training-Free Loosely Speculative Decoding: Accepting Semantically Correct Drafts Beyond Exact Match,
https://arxiv.org/abs/2511.22972 (FLy)

    every drafted token has its usual test; a rejection of x_i is overruled  iff
    -sum p ln p over the `top` likeliest tokens >= entropy,  the next `window` tokens are drafted and pass,  p(x_i) > 0

A synonym does not change what follows, an error does. At temperature 0 the usual test is equality with the likeliest
token, p being the softmax of the logits, and above it that of `speculative`. The reported deviation is the number of
overruled tokens among the accepted ones: no bound on the distribution of the output is known.

A token is overruled only if `window` more are drafted, so that chains of `window` tokens are verified as usual.

The rule and its defaults are those that vLLM documents (rejection_sample_method fly).
Exact: no, except where `entropy` is more than the sum can be, which is 1.1 for three tokens.
"""

from __future__ import annotations

from math import e, log
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...registry import register
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict, one_chain
from ..ops.relaxed import end_of_chain
from ..ops.verification import Exact, drafted_probs, judge, uniforms_of_nodes
from .greedy import follow


@register("fly", checked="reference:samplers.speculative.test_fly.naive")
class Fly(Acceptance):
    requires, conflicts = one_chain("verifies one chain per row")
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"entropy": (0.9, 0.6, 0.3, 0.1, 0.0)}

    entropy: Annotated[float, "least entropy of the target at an overruled token, over its likeliest ones, in nats"] = (
        0.3
    )
    window: Annotated[int, "drafted tokens after an overruled one that have to pass"] = 6
    top: Annotated[int, "likeliest tokens over which the entropy is summed"] = 3

    def __post_init__(self) -> None:
        self.require("entropy", least=0, hint="entropy=2 is the exact rule")
        self.require("window", "top", least=1)

    @property
    def exact(self) -> str:
        return "distribution" if self.entropy > max(self.top / e if self.top < e else 0, log(self.top)) else "relaxed"

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        if draft.width <= self.window + 1 or self.exact == "distribution":
            if distributions.greedy:
                return follow(draft, distributions.pick)
            return judge(draft, distributions.probs, uniforms)
        p = distributions.logits.softmax(-1) if distributions.greedy else distributions.probs
        own = pad(p[:, :-1].gather(-1, draft.ids[:, 1:, None])[..., 0], (1, 0))  # [B, T]
        if distributions.greedy:
            ratio = pad((draft.tokens[:, 1:] == distributions.pick[:, :-1]).to(p.dtype), (1, 0))
            passes = draft.tested & (ratio > 0)
        else:
            draft_probs = drafted_probs(draft)
            ratio = (own / draft_probs.clamp(min=_NOTHING)).clamp(max=1)
            passes = draft.tested & (uniforms_of_nodes(draft, uniforms) * draft_probs < own)
        overruled = draft.tested & ~passes & (own > 0) & self.unsure(p) & self.confirmed(passes)
        off = overruled.to(p.dtype)
        return end_of_chain(
            draft, distributions.probs, uniforms, passes | overruled, torch.maximum(ratio, off), off, Exact()
        )

    def unsure(self, p: Tensor) -> Tensor:
        """[B, T] bool: nodes before which p [B, T, V], the distributions after the nodes, is unsure."""
        likeliest = p.topk(min(self.top, p.shape[-1]), -1).values
        return pad(-torch.special.xlogy(likeliest, likeliest).sum(-1)[:, :-1] >= self.entropy, (1, 0))

    def confirmed(self, passes: Tensor) -> Tensor:
        """[B, T] bool: nodes after which `window` nodes of `passes` [B, T] follow."""
        return pad(passes, (0, self.window)).unfold(1, self.window, 1)[:, 1:].all(-1)


_NOTHING = 1e-12  # a probability below this is rounding error
