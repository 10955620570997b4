"""Falcon's drafter predicts several tokens per pass: blocks of pairs after an EAGLE-1.

Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting and
Custom-Designed Decoding Tree, https://arxiv.org/abs/2412.12639

    block after the pair (e(x_i), g_(i-1)):  queries (e(x_i), g_(i-1) + o_j) at its position + j;  o_0 = 0, j < k
    query j predicts x_(i+1+j);  the next block stands after (e(x_(i+k)), the output of query k - 1)

Queries j > 0 see the whole block and all before it; query 0, an EAGLE-1's own, does not see the others, so that its K/V
are those of a committed pair. Deviates from the paper: there an LSTM couples the tokens of a block, here the learned
offsets o_j do. Layout: EAGLE-1's, with `block_offsets.weight` [k - 1, E].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ModelError
from ..files.weights import Published
from ..model import LanguageModel
from . import eagle_load
from .contracts import DraftFiles, DraftKind, register
from .eagle import EagleModule
from .eagle_files import EagleLayout, is_eagle
from .parameters import parameter

_OFFSETS = "block_offsets.weight"
_COUPLING = "lstm.weight_ih_l0"


class BlockModule(EagleModule):
    """An EAGLE-1 with a learned offset per query of a block."""

    kind: ClassVar[str] = "falcon"
    more_names: ClassVar[dict[str, str]] = {"offsets": _OFFSETS}

    def __init__(self, files: DraftFiles, target: LanguageModel, form: EagleLayout, *, own_embedding: bool) -> None:
        super().__init__(files, target, form, own_embedding=own_embedding)
        self.block = files.published[_OFFSETS].shape[0] + 1
        self.offsets = parameter(self.block - 1, self.width)

    def table(self, block: int) -> Tensor:
        """[block, E] the offsets of the queries of a block, 0 for the first."""
        return torch.cat((torch.zeros_like(self.offsets[:1]), self.offsets[: block - 1]))


def load(files: DraftFiles, target: LanguageModel) -> BlockModule:
    """Raises ModelError for the authors' own files, and for an EAGLE of another version than the first."""
    if _COUPLING in files.published:
        raise ModelError(
            f"{files.name} has {_COUPLING}: the authors' LSTM, which runs over the batch, is not supported",
            f"use files in EAGLE-1's layout with {_OFFSETS}",
        )
    module = eagle_load.load(files, target, make=BlockModule)
    assert isinstance(module, BlockModule)
    if module.form.version != "1":
        raise ModelError(
            f"{files.name} has {_OFFSETS} with an EAGLE-{module.form.version}", "only EAGLE-1's layout is supported"
        )
    module.about = (f"blocks of {module.block}", *module.about)
    return module


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    attention = "layers.0.self_attn.q_proj.weight" in published
    foreign = is_eagle(config, {name: entry for name, entry in published.items() if name != _OFFSETS})
    return attention and (_COUPLING in published or (_OFFSETS in published and foreign))


KIND = register(
    DraftKind(
        name="falcon",
        summary="blocks of pairs after an EAGLE-1: several distributions per pass",
        matches=_matches,
        load=load,
        published={"EAGLE-1 with block_offsets (pardec's own)": "a plain version"},
    )
)
