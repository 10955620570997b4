"""MiMo-7B: Qwen2's stack and names, with layers for multi-token prediction beside it (see `models.draft_modules.mtp`).

MiMo: Unlocking the Reasoning Potential of Language Model, https://arxiv.org/abs/2505.07608
"""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN2_KEYS, shape

MIMO = register(
    FamilySpec(
        name="mimo",
        summary="MiMo-7B",
        matches=lambda config: config.get("model_type") == "mimo",
        decoder=lambda config: shape(config, "qwen2", qkv_bias=True),
        names=NAMES,
        attention="causal",
        shift=1,
        keys=QWEN2_KEYS.also(use_mrope=(None, False), attention_bias=(None, True)),
        harmless=HARMLESS,
    )
)
