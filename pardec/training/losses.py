"""Losses of a draft distribution q against the target's distribution p, one number per position.

    ce            -log q(y),  y the token that the target chose
    fkl           sum p log(p / q)
    rkl           sum q log(q / p)
    jsd:beta      beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q
    tvd           1/2 sum |p - q| = 1 - a,  a = sum min(p, q) the chance that one drafted token is accepted
    lk            -log a
    lk_hybrid:eta w fkl + (1 - w) tvd,  w = exp(-eta a), a without gradient
    tvd++         -log q(x) A(x),  x ~ q,  r(x) = 1[q(x) < p(x)],  A = (r - mean r) / std r over the positions

DistillSpec: Improving Speculative Decoding via Knowledge Distillation, https://arxiv.org/abs/2310.08461
TVD++: Direct Alignment of Draft Model for Speculative Decoding, https://arxiv.org/abs/2403.00858

A drafter with fewer ids than the target has q = 0 off its list. The divergences (fkl, rkl, jsd) compare q with p on the
list, renormalised; the overlaps (tvd, lk, lk_hybrid, tvd++) take p as it is: what lies off the list is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pardec.models.errors import SpecError, did_you_mean

_LEAST = 1e-9  # lower bound of an overlap before its logarithm
_Function = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # (log q [N, Vd], log p [N, Vd], labels [N], parameter)


@dataclass(frozen=True)
class Loss:
    """A named loss. With `overlap` it needs p over all ids, not only over the draft vocabulary."""

    name: str
    overlap: bool
    hard: bool  # it reads the labels alone
    parameter: float
    function: _Function

    def __call__(self, draft: Tensor, target: Tensor, labels: Tensor, ids: Tensor | None = None) -> Tensor:
        """The loss of N positions [N].

        Args:
            draft: logits [N, Vd] of the drafter.
            target: logits [N, V] of the target; a loss without `overlap` takes them over the draft vocabulary too.
            labels: [N] the target's choice as an id of the draft vocabulary; -1 if it is not in it.
            ids: [Vd] the target's id of each id of the draft vocabulary; None: they are the same.
        """
        log_q = draft.float().log_softmax(-1)
        if ids is not None and target.shape[-1] != len(ids):
            log_p = target.float().log_softmax(-1)[:, ids] if self.overlap else target.float()[:, ids].log_softmax(-1)
        elif self.overlap and ids is not None:
            raise ValueError(f"{self.name} needs the target's logits over all of its ids")
        else:
            log_p = target.float().log_softmax(-1)
        return self.function(log_q, log_p, labels, self.parameter)

    @property
    def softmax(self) -> bool:
        """Whether the gradient with respect to the draft logits is q minus a distribution, which `with_slope` uses."""
        return self.function in (_ce, _fkl)

    def with_slope(self, draft: Tensor, target: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of the loss, and its gradient with respect to the draft logits [N, Vd], in their dtype.

        Both logits are over the draft vocabulary and may be bfloat16, which is precise enough.
        """
        log_q = draft.log_softmax(-1)
        slope = log_q.exp()
        at = labels.clamp(min=0)[:, None]
        if self.hard:
            value = -log_q.gather(-1, at)[:, 0].float()
            slope.scatter_add_(-1, at, torch.full_like(at, -1, dtype=slope.dtype))
        else:
            log_p = target.log_softmax(-1)
            p = log_p.exp()
            value = torch.linalg.vecdot(p, log_p - log_q).float()
            slope -= p
        return (value * weights).sum(), slope * weights[:, None].to(slope.dtype)


def loss(name: str) -> Loss:
    """The loss of a name such as "fkl" or "lk_hybrid:3". Raises SpecError for an unknown one."""
    stem, colon, value = name.partition(":")
    if stem not in _LOSSES:
        raise SpecError(
            f"unknown loss {stem!r}{did_you_mean(stem, list(_LOSSES))}", hint=f"one of {', '.join(_LOSSES)}"
        )
    function, default = _LOSSES[stem]
    if colon and default is None:
        raise SpecError(f"{stem} takes no parameter, got {value!r}", hint=f"write {stem}")
    try:
        parameter = float(value) if colon else default or 0.0
    except ValueError:
        raise SpecError(f"{stem}: {value!r} is not a number", hint=f"write {stem}:{default:g}") from None
    if stem == "jsd" and not 0 < parameter < 1:
        raise SpecError(f"jsd: beta must lie between 0 and 1, got {parameter:g}", hint="jsd:0.5 weighs both alike")
    return Loss(name, stem in ("tvd", "lk", "lk_hybrid", "tvd++"), stem == "ce", parameter, function)


def overlap(log_q: Tensor, log_p: Tensor) -> Tensor:
    """sum min(p, q) [N]: the chance that a token drawn from q is accepted."""
    return torch.minimum(log_q, log_p).exp().sum(-1)


def _ce(log_q: Tensor, log_p: Tensor, labels: Tensor, _: float) -> Tensor:
    return F.nll_loss(log_q, labels.clamp(min=0), reduction="none") * (labels >= 0)


def _divergence(log_a: Tensor, log_b: Tensor) -> Tensor:
    """KL(a || b)."""
    return (log_a.exp() * (log_a - log_b)).sum(-1)


def _fkl(log_q: Tensor, log_p: Tensor, labels: Tensor, _: float) -> Tensor:
    return _divergence(log_p, log_q)


def _rkl(log_q: Tensor, log_p: Tensor, labels: Tensor, _: float) -> Tensor:
    return _divergence(log_q, log_p)


def _jsd(log_q: Tensor, log_p: Tensor, labels: Tensor, beta: float) -> Tensor:
    mixture = (beta * log_p.exp() + (1 - beta) * log_q.exp()).clamp(min=torch.finfo(log_p.dtype).tiny).log()
    return beta * _divergence(log_p, mixture) + (1 - beta) * _divergence(log_q, mixture)


def _tvd(log_q: Tensor, log_p: Tensor, labels: Tensor, _: float) -> Tensor:
    return 1 - overlap(log_q, log_p)


def _lk(log_q: Tensor, log_p: Tensor, labels: Tensor, _: float) -> Tensor:
    return -overlap(log_q, log_p).clamp(min=_LEAST).log()


def _lk_hybrid(log_q: Tensor, log_p: Tensor, labels: Tensor, eta: float) -> Tensor:
    share = overlap(log_q, log_p)
    weight = (-eta * share.detach()).exp()
    return weight * _divergence(log_p.log_softmax(-1), log_q) + (1 - weight) * (1 - share)


def _tvd_plus(log_q: Tensor, log_p: Tensor, labels: Tensor, _: float) -> Tensor:
    choice = torch.multinomial(log_q.detach().exp(), 1)
    log_q, log_p = log_q.gather(-1, choice)[:, 0], log_p.gather(-1, choice)[:, 0]
    reward = (log_q.detach() < log_p).to(log_q.dtype)
    return -log_q * (reward - reward.mean()) / (reward.std(correction=0) + 1e-6)


_LOSSES: dict[str, tuple[_Function, float | None]] = {
    "ce": (_ce, None),
    "fkl": (_fkl, None),
    "rkl": (_rkl, None),
    "jsd": (_jsd, 0.5),
    "tvd": (_tvd, None),
    "lk": (_lk, None),
    "lk_hybrid": (_lk_hybrid, 3.0),
    "tvd++": (_tvd_plus, None),
}
LOSSES = tuple(_LOSSES)
