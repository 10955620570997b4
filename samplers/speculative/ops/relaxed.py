"""Verification by relaxed rules: the nodes of a chain in one batched computation, siblings one after the other."""

from __future__ import annotations

import torch

from ..contracts import BatchedUniforms, Draft, Uniforms, Verdict
from .tree_walk import descend, reached
from .verification import Rule, Trial, drafted_probs, judge_siblings


def relaxed(draft: Draft, p: torch.Tensor, uniforms: Uniforms, rule: Rule) -> Verdict:
    """The verdict of `rule`; p [B, T, V] are the target's distributions after the nodes of the draft.

    The deviation is the sum of |a(x) - min(1, r(x) / q(x))| over the tested tokens, a(x) being the rule's acceptance
    probability and r the residual before the test. Where a rejection leaves the residual of the exact test, the mean
    deviation over drafts bounds the total variation from the target's distribution.
    """
    rows = torch.arange(len(p), device=p.device)
    if draft.width == 1:
        first = torch.zeros_like(draft.tokens)
        none = torch.zeros_like(p[:, 0, 0])
        return Verdict(first, first[:, 0], uniforms.draw(p[:, 0], "next"), draft.tested, first.float(), none)
    if draft.parents is not None or not isinstance(uniforms, BatchedUniforms):
        return judge_siblings(draft, p, uniforms, rule)
    draft_probs, width = drafted_probs(draft), draft.width - 1
    row, node = rows.repeat_interleave(width), torch.arange(1, draft.width, device=p.device).repeat(len(p))
    r, trial = p[:, :-1].flatten(0, 1), Trial.of(draft, row, node, node - 1, draft_probs)
    target = rule.weight(r, trial)
    accept_prob = (target / trial.draft_prob.clamp(min=1e-12)).clamp(max=1)
    passed, ratio, gap = torch.zeros_like(draft.tested), torch.zeros_like(draft_probs), torch.zeros_like(p[..., 0])
    passed[:, 1:] = (uniforms.accepts(draft.width)[row, node] * trial.draft_prob < target).view(len(p), width)
    ratio[:, 1:] = accept_prob.view(len(p), width)
    gap[:, 1:] = (accept_prob - trial.exact_probability(r)).abs().view(len(p), width)
    return end_of_chain(draft, p, uniforms, passed, ratio, gap, rule)


def end_of_chain(
    draft: Draft,
    p: torch.Tensor,
    uniforms: Uniforms,
    passed: torch.Tensor,
    ratio: torch.Tensor,
    gap: torch.Tensor,
    rule: Rule,
) -> Verdict:
    """The verdict on chains whose nodes `passed` [B, T] their tests, and the next token as `rule` draws it.

    `ratio` and `gap` [B, T] are each node's acceptance probability and what it adds to the deviation, if tested.
    """
    rows, width = torch.arange(len(p), device=p.device), draft.width - 1
    path, count = descend(draft, draft.tested & passed)
    tested = reached(draft, path, count)
    # The node after the last accepted one was rejected, where there is one.
    above, after = count, (count + 1).clamp(max=width)
    rejected = (count < width) & tested[rows, after]
    distribution, trial = p[rows, above], Trial.of(draft, rows, after, above, drafted_probs(draft))
    left = torch.where(rejected[:, None], rule.after_rejection(distribution, trial), distribution)
    ratio, gap = ratio.masked_fill(~tested, 0), gap.masked_fill(~tested, 0)
    return Verdict(path, count, uniforms.draw(left, "next"), tested, ratio, gap.cumsum(1)[:, -1])
