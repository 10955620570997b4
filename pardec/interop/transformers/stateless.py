"""Tests whether a logits processor of the caller is a function of a row's text and scores, before anything runs.

transformers calls a processor once per token with all rows. pardec calls it with some rows, and with several drafted
tokens of each, in another order. transformers' own classes are known by name; other processors are called on the
prompts, and their outputs and attributes are compared.
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
    """Raises SpecError for a processor that keeps state, is random, or mixes the rows of `input_ids` [B, P].

    Effects that appear only after some tokens are not detected.
    """
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(len(input_ids), vocab, generator=generator).to(input_ids.device)
    for processor in processors:
        if type(processor).__module__ == logits_process.__name__:
            continue
        name = type(processor).__name__
        if isinstance(processor, _BY_ROW):
            raise SpecError(f"{name} is a subclass of a processor that uses batch indices", hint=_HINT)
        _call(processor, input_ids, scores)  # the first call may initialize state
        state = copy.copy(getattr(processor, "__dict__", {}))
        state = {key: copy.deepcopy(value) for key, value in state.items() if _plain(value)}
        together = _call(processor, input_ids, scores)
        changed_names = [key for key, value in state.items() if not _same(value, getattr(processor, key, None))]
        if changed_names:
            raise SpecError(f"{name} keeps state between calls (in {', '.join(changed_names)})", hint=_HINT)
        if not _same(together, _call(processor, input_ids, scores)):
            raise SpecError(f"{name} returns something else when it is called again", hint=_HINT)
        if len(input_ids) == 1:  # the nodes of a draft are processed together, like rows
            ids, distribution = (
                torch.cat((input_ids, input_ids.roll(1, 1))),
                torch.cat((scores, 2 * scores.flip(1) + 1)),
            )
            together = _call(processor, ids, distribution)
        else:
            ids, distribution = input_ids, scores
        separate = [_call(processor, ids[row : row + 1], distribution[row : row + 1]) for row in range(len(ids))]
        if not _same(together, torch.cat(separate)):
            raise SpecError(f"{name} returns something else for a row in a batch than alone", hint=_HINT)


def _call(processor: Any, input_ids: Tensor, scores: Tensor) -> Tensor:
    output = processor(input_ids.clone(), scores.clone())
    if not isinstance(output, Tensor) or output.shape != scores.shape:
        kind = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise SpecError(f"{type(processor).__name__} gives {kind} for scores {list(scores.shape)}", hint=_HINT)
    return output


def _plain(value: Any) -> bool:
    """Whether the value is a number, text, tensor or collection, whose changes reveal state."""
    return isinstance(value, (int, float, str, bytes, Tensor, list, tuple, dict, set, type(None)))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.shape == second.shape and torch.allclose(first, second, atol=1e-4, equal_nan=True)
    try:
        return type(first) is type(second) and bool(first == second)
    except (RuntimeError, ValueError, TypeError):  # a collection of tensors cannot be compared
        return True
