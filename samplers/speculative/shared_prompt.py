"""A prompt that all rows of a request have, or the beginning of theirs: fed once, as one row, its K/V in memory once.

Hydragen: High-Throughput LLM Inference with Shared Prefixes, https://arxiv.org/abs/2402.05099
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from torch import Tensor

from pardec.models.hidden import Hidden
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

from ..request import Request
from .sequences import Sequences

# Slots of K/V saved, from which on a prompt is shared: rows beyond the first times its tokens. On a CPU a step of two
# rows takes up to a third longer with a tiny model, since each layer attends twice, and one of 8 rows at 128 tokens a
# tenth; a shorter prompt's forward saved does not make up for that within an answer (benchmarks/shared_prefix.md).
LEAST_SLOTS = 768


def shared_length(model: LanguageModel, request: Request, text: Sequences, *, begins: bool) -> int:
    """The tokens that the rows hold in common, 0 where they share none: those of one prompt or, where `begins`, those
    that prompts which go on differently begin with."""
    least, rows = int(text.length.min()), len(text)
    alike = (text.host[:, :least] == text.host[0, :least]).all(0)
    length = least if alike.all() else int(alike.argmin())
    if length < text.length.max():  # every row has at least one token of its own, and may go on from a stored prefix
        length = min(length, least - 1) if begins and model.prefix_cache is None else 0
    worth = rows > 1 and length > 0 and (rows - 1) * length >= LEAST_SLOTS
    if not (request.share_prompt and worth and length < text.limit.max()):
        return 0
    if model.device.type != "cpu":  # where it has not been measured
        return 0
    return length if model.shared_prefix_off_reason is None else 0


def of_all_rows(hidden: Hidden, count: int) -> Hidden:
    """The forward of one row as that of `count` rows alike: views, and nothing is computed again but logits."""
    plan = hidden.plan
    wide: dict[str, Any] = {}
    for field in fields(Plan):
        value = getattr(plan, field.name)
        if isinstance(value, Tensor):
            wide[field.name] = value.expand(count, *value.shape[1:])
    taps = {layer: states.expand(count, -1, -1) for layer, states in hidden.taps.items()}
    queries = tuple(each.expand(count, -1, -1, -1) for each in hidden.queries)
    return replace(
        hidden, plan=replace(plan, **wide), states=hidden.states.expand(count, -1, -1), taps=taps, queries=queries
    )


def rows_fed(length: np.ndarray, shared: int, reused: int) -> tuple[np.ndarray, np.ndarray]:
    """[B] the first position and the count of those that the prompts' forwards fed for each row.

    The first row fed what all of them share, behind the tokens that it `reused`.
    """
    base = np.full_like(length, shared)
    base[0] = reused
    return base, length - base
