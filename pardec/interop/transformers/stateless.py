"""Whether a logits processor of the caller's is a function of a row's text and scores, tried before anything runs.

transformers asks a processor once a token, about all rows. pardec asks about several rows, and about several drafted
tokens of each, in an order of its own. That can be told for transformers' own classes by their names; others are called
on the prompts, and what they give and keep is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import PrefixConstrainedLogitsProcessor, RepetitionPenaltyLogitsProcessor, logits_process

from pardec.models.errors import SpecError

_BY_ROW = (PrefixConstrainedLogitsProcessor, RepetitionPenaltyLogitsProcessor)
_HINT = "make it a function of input_ids and scores, row by row, or leave custom_generate out"


def require_stateless(processors: Sequence[Any], input_ids: Tensor, vocab: int) -> None:
    """Raises SpecError for a processor that remembers calls, draws, or mixes the rows of `input_ids` [B, P].

    What shows only after some tokens is not found out.
    """
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(len(input_ids), vocab, generator=generator).to(input_ids.device)
    for processor in processors:
        if type(processor).__module__ == logits_process.__name__:
            continue
        name = type(processor).__name__
        if isinstance(processor, _BY_ROW):
            raise SpecError(f"{name} changes one that knows rows by their place in the batch", hint=_HINT)
        _ask(processor, input_ids, scores)  # what is made once, at the first call
        before = copy.copy(getattr(processor, "__dict__", {}))
        before = {key: copy.deepcopy(value) for key, value in before.items() if _plain(value)}
        whole = _ask(processor, input_ids, scores)
        changed = [key for key, value in before.items() if not _same(value, getattr(processor, key, None))]
        if changed:
            raise SpecError(f"{name} remembers its calls (in {', '.join(changed)})", hint=_HINT)
        if not _same(whole, _ask(processor, input_ids, scores)):
            raise SpecError(f"{name} gives something else when it is asked again", hint=_HINT)
        if len(input_ids) == 1:  # the nodes of a draft are asked about together, as rows are
            ids, distribution = (
                torch.cat((input_ids, input_ids.roll(1, 1))),
                torch.cat((scores, 2 * scores.flip(1) + 1)),
            )
            whole = _ask(processor, ids, distribution)
        else:
            ids, distribution = input_ids, scores
        alone = [_ask(processor, ids[row : row + 1], distribution[row : row + 1]) for row in range(len(ids))]
        if not _same(whole, torch.cat(alone)):
            raise SpecError(f"{name} gives a row something else in a batch than alone", hint=_HINT)


def _ask(processor: Any, input_ids: Tensor, scores: Tensor) -> Tensor:
    given = processor(input_ids.clone(), scores.clone())
    if not isinstance(given, Tensor) or given.shape != scores.shape:
        what = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise SpecError(f"{type(processor).__name__} gives {what} for scores {list(scores.shape)}", hint=_HINT)
    return given


def _plain(value: Any) -> bool:
    """Whether it is a number, text, tensor or a collection, which shows that something is remembered."""
    return isinstance(value, (int, float, str, bytes, Tensor, list, tuple, dict, set, type(None)))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, atol=1e-4, equal_nan=True)
    try:
        return type(one) is type(other) and bool(one == other)
    except (RuntimeError, ValueError, TypeError):  # a collection of tensors has no truth
        return True
