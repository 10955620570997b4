"""The models that the entries decode with: published shapes with random weights, or tiny ones in a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import pardec
from pardec.bench.published import config_of
from pardec.bench.shapes import build, shaped
from pardec.models.cuda_graphs.capture import Graphs
from pardec.models.cuda_graphs.runner import GraphRunner

MASKED, CAUSAL = "llada-8b", "qwen3-8b"
_TINY = {
    MASKED: {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 96, "vocab_size": 512},
    CAUSAL: {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 512,
    },
}


def model(name: str, *, dry: bool) -> pardec.Model:
    """`name` in bfloat16 on the GPU; in a dry run, a model of its family with two layers on the CPU."""
    if not dry:
        return shaped(name, device="cuda", dtype="bfloat16", cuda_graphs=False)
    return build(name, config_of(name) | _TINY[name], device="cpu", dtype="bfloat16")


def eager_and_captured(name: str, *, dry: bool) -> Iterator[tuple[pardec.Model, bool]]:
    """The model as it is, then with its forwards captured as CUDA graphs, which a dry run leaves out."""
    loaded = model(name, dry=dry)
    yield loaded, False
    if not dry:
        network: Any = loaded.network
        network.decoder = GraphRunner(network.decoder, Graphs())
        yield loaded, True
        del loaded, network
        torch.cuda.empty_cache()  # the next model needs the room
