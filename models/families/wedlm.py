"""WeDLM: Qwen2.5's or Qwen3's stack and names, causal over known tokens first and masks after (arXiv:2512.22737).

Both flags of the config are read: `attention_bias` (7B) and `qk_norm` (8B). Predictions are at their own position.
"""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN3_KEYS, both_ways, shape

WEDLM = register(
    FamilySpec(
        name="wedlm",
        summary="WeDLM",
        matches=lambda config: config.get("model_type") == "wedlm",
        decoder=lambda config: shape(
            config, "qwen3", qkv_bias=bool(config.get("attention_bias")), qk_norm=bool(config.get("qk_norm"))
        ),
        names=NAMES,
        attention="windowed-causal",
        shift=0,
        keys=both_ways(QWEN3_KEYS).also("qk_norm", use_sliding_window=(False, None)),
        mask=(151665, "<|mask|>"),
        turn_ends={151645: "<|im_end|>"},
        harmless=HARMLESS,
    )
)
