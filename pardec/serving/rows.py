"""Rows of a batch, and the request that decodes several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pardec.models.images.conditioned import Prefix
from pardec.samplers.request import Allowed, Request
from pardec.samplers.rng import JoinableSource

if TYPE_CHECKING:
    from ..requests.call import Call


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRow:
    """One checked row of the queue: the call that decodes it alone, and its request within a batch."""

    index: int
    call: Call
    request: Any
    sample: int = 0  # index among the prompt's return sequences

    @property
    def kind(self) -> tuple[Any, ...]:
        """Rows of one kind can share a batch."""
        return self.call.batch_key(self.request)


def merge_requests(rows: Sequence[QueuedRow]) -> Request:
    """One request for all of these rows."""
    requests: list[Request] = [row.request for row in rows]
    return replace(
        requests[0],
        share_prompt=False,  # other rows are to join these
        canvases=tuple(canvas for request in requests for canvas in request.canvases),
        prompts=tuple(start for request in requests for start in request.prompts),
        source=JoinableSource([row.call.seeds[0] for row in rows]),
        samples=tuple(request.samples[0] if request.samples else 0 for request in requests),
        conditions=tuple(condition for request in requests for condition in request.conditions),
        prefix=_merge_prefixes([request.prefix for request in requests if request.prefix is not None]),
        allowed=_merge_allowed(requests),
        stops=tuple(request.stops[0] if request.stops else None for request in requests),
        constrained_spans=tuple(
            request.constrained_spans[0] if request.constrained_spans else () for request in requests
        ),
        grammars=tuple(request.grammars[0] if request.grammars else None for request in requests),
    )


def _merge_prefixes(prefixes: list[Prefix]) -> Prefix | None:
    if not prefixes:
        return None
    unconds = [prefix.uncond for prefix in prefixes if prefix.uncond is not None]
    conds = tuple(states for prefix in prefixes for states in prefix.cond)
    return Prefix(conds, tuple(states for uncond in unconds for states in uncond) if unconds else None)


def _merge_allowed(requests: list[Request]) -> Allowed | None:
    """Concatenates the sets of allowed tokens; set 0, which allows everything, is kept once."""
    some = next((request.allowed for request in requests if request.allowed is not None), None)
    if some is None:
        return None
    sets, at = [some.sets[:1]], []
    for request in requests:
        if request.allowed is None:
            at += [torch.zeros(len(canvas), dtype=torch.int64) for canvas in request.canvases]
            continue
        offset = sum(map(len, sets)) - 1
        at += [torch.where(indices > 0, indices + offset, 0) for indices in request.allowed.at]
        sets.append(request.allowed.sets[1:])
    return Allowed(torch.cat(sets), tuple(at))
