"""Tests by other rules than the exact one: a chain's in one batched computation, siblings one after the other."""

from __future__ import annotations

import torch

from ..speculative.contracts import AtOnce, Draft, Uniforms, Verdict
from .tree_walk import descend, reached
from .verification import Rule, Trial, at_token, in_turn


def relaxed(draft: Draft, p: torch.Tensor, uniforms: Uniforms, rule: Rule) -> Verdict:
    """The verdict of `rule` on a draft behind whose nodes the target's laws are p [B, T, V].

    The deviation is the sum of |a(x) - min(1, r(x) / q(x))| over the tested tokens, a(x) being the rule's chance of
    accepting x and r the law before the test. Where a rejection leaves what the exact rule leaves, its mean over drafts
    bounds the total variation from the target's law.
    """
    rows = torch.arange(len(p), device=p.device)
    if draft.width == 1:
        first = torch.zeros_like(draft.tokens)
        none = torch.zeros_like(p[:, 0, 0])
        return Verdict(first, first[:, 0], uniforms.draw(p[:, 0], "next"), draft.tested, first.float(), none)
    if draft.parents is not None or not isinstance(uniforms, AtOnce):
        return in_turn(draft, p, uniforms, rule)
    bars, width = at_token(draft), draft.width - 1
    row, node = rows.repeat_interleave(width), torch.arange(1, draft.width, device=p.device).repeat(len(p))
    r, trial = p[:, :-1].flatten(0, 1), Trial.of(draft, row, node, node - 1, bars)
    mine = rule.weight(r, trial)
    uniform = (mine / trial.bar.clamp(min=1e-12)).clamp(max=1)
    won, ratio, gap = torch.zeros_like(draft.tested), torch.zeros_like(bars), torch.zeros_like(p[..., 0])
    won[:, 1:] = (uniforms.accepts(draft.width)[row, node] * trial.bar < mine).view(len(p), width)
    ratio[:, 1:] = uniform.view(len(p), width)
    gap[:, 1:] = (uniform - trial.plain(r)).abs().view(len(p), width)
    path, count = descend(draft, draft.tested & won)
    tested = reached(draft, path, count)
    # The node behind the last accepted one was rejected, where there is one.
    above, after = count, (count + 1).clamp(max=width)
    lost = (count < width) & tested[rows, after]
    distribution = p[rows, above]
    left = torch.where(lost[:, None], rule.left(distribution, Trial.of(draft, rows, after, above, bars)), distribution)
    ratio, gap = ratio.masked_fill(~tested, 0), gap.masked_fill(~tested, 0)
    return Verdict(path, count, uniforms.draw(left, "next"), tested, ratio, gap.cumsum(1)[:, -1])
