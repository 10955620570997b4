"""Hidden transfer: linear maps predict the states of later positions from a token's state, inside the stack.

Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration, https://arxiv.org/abs/2404.12022

    s_(t+j) = T_j f^(l_j)_t,  j = 1 .. k,  l_1 < .. < l_k;  it runs the layers after l_j at position t + j
    logits_j = head(norm(its output)) predict the token j + 1 positions after t

f^l is the output of layer l, from 0. The authors have published no files. Layout, pardec's own: `transfer.{j}.weight`
[E, E] for j from 0, and a config with "model_type": "hidden_transfer" and "layers": the layer l of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from ..errors import ModelError
from ..files.weights import Published, count_parts
from ..kernels.matmul import matmul
from ..model import LanguageModel
from ..plan import TargetStates
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .parameters import check_head

_NAME = "transfer.{}.weight"


class HiddenTransfer(DraftModule):
    """The maps; the states that they predict run through the target's upper layers and head."""

    kind = "transfer"
    states = TargetStates(normed=True)

    def __init__(self, files: DraftFiles, target: LanguageModel, layers: tuple[int, ...], maps: list[Tensor]) -> None:
        """`maps` [E, E] apply to the outputs of `layers`."""
        super().__init__(files, target)
        self.layers = layers
        self.maps = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight in maps)
        self.steps = self.depth = len(maps)
        self.step = tuple(range(len(maps)))
        self.about = (f"states are made after layers {', '.join(map(str, layers))} of 0..{target.layers - 1}",)

    def make(self, step: int, states: Tensor) -> Tensor:
        """Predicts the states step + 1 positions later from `states` [.., E], the outputs of that step's layer."""
        return matmul(states.contiguous(), self.maps[step])

    def logits(self, normed: Tensor) -> Tensor:
        """Logits, float32 [B, k, V], from the outputs after the final norm [B, k, E]."""
        head: Any = self.target.decoder
        logits: Tensor = head.unembed(normed.flatten(0, 1)).float()
        return logits.view(*normed.shape[:2], -1)


def load(files: DraftFiles, target: LanguageModel) -> HiddenTransfer:
    """The maps of a folder. Raises ModelError for layers or widths that the target does not have."""
    name, layers = files.name, files.config.get("layers")
    check_head(name, target)
    count = count_parts(files.published, "transfer")
    if not isinstance(layers, list) or len(layers) != count or not all(type(layer) is int for layer in layers):
        raise ModelError(
            f"{name} has {count} maps and layers={layers!r} in its config", "layers must list the layer of each map"
        )
    if not all(one < other for one, other in pairwise([-1, *layers, target.layers - 1])):
        raise ModelError(
            f"{name} has layers={layers}, which must ascend within 0..{target.layers - 2} for {target.name}",
            "at least the last layer must run on the predicted states",
        )
    names = {_NAME.format(step): str(step) for step in range(count)}
    for tensor in names:
        shape = files.published[tensor].shape if tensor in files.published else (target.width,) * 2
        if shape != (target.width,) * 2:
            raise ModelError(
                f"{name} has {tensor} {list(shape)}; the width of {target.name} is {target.width}",
                "use the target that it was trained with",
            )
    tensors = files.read(names, target.dtype, target.device)
    return HiddenTransfer(files, target, tuple(layers), [tensors[str(step)] for step in range(count)])


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    return _NAME.format(0) in published


KIND = register(
    DraftKind(
        name="transfer",
        summary="hidden transfer: states of coming positions, made inside the stack",
        matches=_matches,
        load=load,
        published={"pardec's own (no files are published): transfer.{j}.weight": "independent writer of the layout"},
    )
)
