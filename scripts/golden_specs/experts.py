"""Sparse MLPs alone: the experts of each token, their weights, and the block's output."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from golden_specs import TOLERANCE, Case, Replay, load, relative
from pardec.models.kernels.experts import route
from pardec.models.kernels.ops import REFERENCE
from pardec.models.layers.sparse_layer import SparseLayer


def _moe_block(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    network = load(folder / case.get("checkpoint", "checkpoint")).language_model.decoder
    layer = network.layers[case["params"]["layer"]]
    assert isinstance(layer, SparseLayer)
    hidden, expected = (tensors[case["tensors"][name]] for name in ("hidden", "output"))
    chosen, weights = route(hidden, layer.router_weight, layer.router_bias, layer.experts)
    order = chosen.argsort(1)
    if not torch.equal(chosen.gather(1, order), tensors[case["tensors"]["experts"]]):
        return "other experts are chosen"
    if (error := relative(weights.gather(1, order), tensors[case["tensors"]["weights"]])) > TOLERANCE:
        return f"weights differ by {error:.1e}"
    found = layer.mlp(hidden, REFERENCE)
    return f"outputs differ by {error:.1e}" if (error := relative(found, expected)) > TOLERANCE else None


REPLAYS: dict[str, Replay] = {"moe_block": _moe_block}
