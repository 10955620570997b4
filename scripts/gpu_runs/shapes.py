"""The models that the entries decode with: published shapes with random weights, or tiny ones in a dry run."""

from __future__ import annotations

import pardec
from pardec.bench.published import config_of
from pardec.bench.shapes import build, shaped

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


def model(name: str, *, dry: bool, cuda_graphs: bool = False) -> pardec.Model:
    """`name` in bfloat16 on the GPU; in a dry run, a model of its family with two layers on the CPU."""
    if not dry:
        return shaped(name, device="cuda", dtype="bfloat16", cuda_graphs=cuda_graphs)
    return build(name, config_of(name) | _TINY[name], device="cpu", dtype="bfloat16")
