"""Accepts a token among the target's k most likely ones if its log-probability is close to the highest.

Blockwise Parallel Decoding for Deep Autoregressive Models, https://arxiv.org/abs/1811.03115 (top-k selection)
The speculators format, https://github.com/vllm-project/speculators (verifier_accept_k and accept_tolerance)

    x accepted  iff  rank p(x) <= k  and  log max p - log p(x) <= tolerance;  next = argmax p

Of several accepted paths the longest is taken, and of equally long ones that of the highest sum of log p. The reported
deviation is the number of accepted tokens that are not the most likely ones.

Deviates from both: trees too.
Exact: no, except with k=1 or tolerance=0, where it is `greedy`. The temperature must be 0, since the next token is the
likeliest.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch

from ...registry import register
from ...traits import Trait
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.tree_walk import longest, reached
from .greedy import follow


@register("topk", checked="reference:samplers.speculative.test_topk.naive")
class TopK(Acceptance):
    provides = frozenset({Trait.LIKELIEST_ONLY})
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tolerance": (0.1, 0.3, 0.7, 1.5, 3.0)}

    k: Annotated[int, "a token must be among the target's k likeliest"] = 3
    tolerance: Annotated[float, "greatest gap of log-probability to the likeliest token, in nats"] = 0.7

    def __post_init__(self) -> None:
        self.require("k", least=1, hint="k=1 is greedy")
        self.require("tolerance", least=0, hint="tolerance=0 is greedy")

    @property
    def exact(self) -> str:
        return "greedy" if self.k == 1 or not self.tolerance else "relaxed"

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        pick = distributions.pick
        if self.exact == "greedy" or draft.width == 1:
            return follow(draft, pick)
        above = draft.parent.clamp(min=0)
        rows = torch.arange(len(pick), device=pick.device)[:, None]
        logits = distributions.logits[rows, above]  # [B, T, V]
        own = logits.gather(-1, draft.ids[..., None])
        same = draft.ids == pick.gather(1, above)
        better = (logits > own).sum(-1)  # equal tokens have one rank, but only the lowest id is the best
        near = logits.amax(-1) - own[..., 0] <= self.tolerance
        fits = draft.tested & (same | ((better < self.k) & near & own[..., 0].isfinite()))
        path, count = longest(draft, fits, logits.log_softmax(-1).gather(-1, draft.ids[..., None])[..., 0])
        on_path = torch.arange(path.shape[1], device=pick.device) <= count[:, None]
        on_path[:, 0] = False  # node 0 was committed before
        other = (on_path & ~same.gather(1, path)).sum(1).to(logits.dtype)
        following = pick.gather(1, path.gather(1, count[:, None]))[:, 0]
        return Verdict(path, count, following, reached(draft, path, count), fits.float(), other)
