"""Prompts repeated before their answers, with the model's log-probabilities of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pardec.samplers.logprobs import TokenLogprobs

from .answers import Echo

if TYPE_CHECKING:
    from ..api import Model
    from .schemas import CompletionBody


def echo(model: Model, ids: list[int], body: CompletionBody) -> Echo:
    """A prompt, with log-probabilities if the request wants them; the first token's is NaN."""
    logprobs = None if body.logprobs is None else _score(model, ids, body)
    return Echo(ids, lambda tokens: model.text(tokens) or "", logprobs)


def _score(model: Model, ids: list[int], body: CompletionBody) -> TokenLogprobs:
    tokens = torch.tensor(ids)
    logprobs = model.logits(tokens[None])[0, :-1].log_softmax(-1)
    own = logprobs.gather(1, tokens[1:, None].to(logprobs.device))[:, 0]
    top = logprobs.topk(min(body.logprobs or 0, logprobs.shape[1]))
    candidates = logprobs[:, body.logprob_ids or []]
    parts = (own[:, None], top.values, candidates)
    first = [torch.full((1, part.shape[1]), torch.nan) for part in parts]
    own, values, candidates = (torch.cat((nan, part.cpu())) for nan, part in zip(first, parts, strict=True))
    ids_ = torch.cat((torch.full((1, top.indices.shape[1]), -1), top.indices.cpu()))
    return TokenLogprobs(own[:, 0].numpy(), ids_.numpy(), values.numpy(), candidates.numpy())
