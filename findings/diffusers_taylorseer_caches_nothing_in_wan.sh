#!/usr/bin/env bash
# diffusers: enable_cache(TaylorSeerCacheConfig()) makes a model predict the outputs of its attention between whole
# steps. By default it looks for modules whose name ends with "attn", as in Flux. Wan, CogVideoX, LTX, Mochi and others
# name theirs attn1 and attn2: nothing is hooked there, each step is computed as before, is_cache_enabled is True, and
# no warning says so. The same call with Pyramid Attention Broadcast finds these modules. cache_identifiers with a
# pattern for the whole name, such as ["blocks.*attn1"], turns it on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
from diffusers import CogVideoXTransformer3DModel, FluxTransformer2DModel, LTXVideoTransformer3DModel
from diffusers import MochiTransformer3DModel, TaylorSeerCacheConfig, WanTransformer3DModel

heads = {"num_attention_heads": 2, "num_layers": 2}
sizes = {
    FluxTransformer2DModel: {"attention_head_dim": 16, "joint_attention_dim": 32, "num_single_layers": 2,
                             "axes_dims_rope": (4, 4, 8), "in_channels": 16, "pooled_projection_dim": 32},
    WanTransformer3DModel: {"attention_head_dim": 12, "text_dim": 16, "freq_dim": 16, "ffn_dim": 32},
    CogVideoXTransformer3DModel: {"attention_head_dim": 8, "text_embed_dim": 16, "time_embed_dim": 8},
    LTXVideoTransformer3DModel: {"attention_head_dim": 8, "cross_attention_dim": 16, "caption_channels": 16},
    MochiTransformer3DModel: {"attention_head_dim": 8, "pooled_projection_dim": 16, "text_embed_dim": 16,
                              "time_embed_dim": 8},
}  # fmt: skip


def hooked(kind, **settings):
    """How many modules carry a hook of the cache."""
    model = kind(**heads, **sizes[kind])
    model.enable_cache(TaylorSeerCacheConfig(**settings))
    assert model.is_cache_enabled
    return sum(bool(getattr(module, "_diffusers_hook", None) and module._diffusers_hook.hooks)
               for module in model.modules())  # fmt: skip


seen = {kind.__name__: hooked(kind) for kind in sizes}
asked = hooked(WanTransformer3DModel, cache_identifiers=["blocks.*attn1"])
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: a model whose cache is enabled has a hook at each attention")
print("seen:", *(f"{name} {count}," for name, count in seen.items()), "Wan with a pattern of its own", asked)
sys.exit(not (list(seen.values()) == [4, 0, 0, 0, 0] and asked == 2))
PY
