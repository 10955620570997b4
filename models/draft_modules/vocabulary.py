"""The ids that a module of fewer ids drafts: draft id j is the target's id j + d2t[j], and t2d marks those ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError
from ..kernels import layout
from ..kernels.matmul import matmul
from ..model import LanguageModel
from ..plan import Plan
from .contracts import DraftFiles


def find_vocabulary(files: DraftFiles, target: LanguageModel, count: int | None, *, of: int) -> Tensor | None:
    """[Vd] int64 the target's id of each draft id, None where they are the same.

    Args:
        count: what the config says of the draft ids; None: nothing.
        of: the size of the config's vocabulary; as many draft ids need no `d2t`.

    Raises:
        ModelError: a `d2t` is missing, names other ids than the target's, or contradicts `t2d`; or the module's own
            head has other rows.
    """
    if count is None:
        return None
    published = files.published
    head = published.get("lm_head.weight")
    if head is not None and head.shape[0] != count:
        raise ModelError(
            f"lm_head.weight of {files.name} has {head.shape[0]} rows and its config says draft_vocab_size={count}"
        )
    whole = count >= of
    if "d2t" not in published:
        if whole:
            return None
        raise ModelError(
            f"{files.name} lacks d2t, which says which {count} of {target.vocab_size} ids its head has",
            "export it with d2t, or with a head of the whole vocabulary",
        )
    offsets = files.read_ids("d2t")
    if offsets.shape != (count,):
        raise ModelError(f"d2t of {files.name} has {len(offsets)} entries, but its head has {count} rows")
    ids = torch.arange(count) + offsets
    outside = int(((ids < 0) | (ids >= target.vocab_size)).sum())
    if whole and not bool(offsets.any()):
        return None
    if outside:
        raise ModelError(f"d2t of {files.name} names {outside} ids that are none of {target.name}'s")
    ordered = ids.sort().values
    if repeated := int((ordered[1:] == ordered[:-1]).sum()):
        raise ModelError(f"d2t of {files.name} names {repeated} ids twice")
    if "t2d" in published:
        known = files.read_ids("t2d").bool()
        inside = ids[ids < len(known)]
        wrong = int(known.sum()) - int(known[inside].sum()) + count - int(known[inside].sum())
        if wrong:
            raise ModelError(
                f"d2t and t2d of {files.name} disagree on {wrong} ids", "export both tensors again, together"
            )
    return ids.to(target.device)


@dataclass(frozen=True, slots=True, eq=False)
class OwnIds:
    """Ids that single rows of a batch draft in addition to the vocabulary."""

    ids: Tensor  # [E] int64
    weight: Tensor  # [E, W] the head's rows for them
    own: Tensor  # [B, E] bool: the ids that each row of the cache drafts

    def logits(self, states: Tensor, plan: Plan) -> Tensor:
        """Logits [M, E] of `states` [M, W], M / B per row of the plan; -inf for the ids of other rows."""
        logits = matmul(states, self.weight)
        if len(self.own) == 1:
            return logits
        own = self.own if plan.rows is None else self.own[plan.rows]
        return logits.masked_fill(~own.repeat_interleave(len(states) // len(own), 0), -torch.inf)


def own_ids(rows: Sequence[np.ndarray], vocabulary: Tensor, weight: Tensor) -> OwnIds:
    """The ids `rows[b]` of each row that `vocabulary` [Vd] lacks, with their rows of the target's head `weight`."""
    known, device = vocabulary.cpu().numpy(), vocabulary.device
    own = [np.setdiff1d(row, known) for row in rows]
    ids = np.unique(np.concatenate(own))
    index = torch.from_numpy(ids).to(device)
    mask = torch.from_numpy(np.stack([np.isin(ids, row) for row in own])).to(device)
    return OwnIds(index, layout.rows_of(weight, index), mask)
