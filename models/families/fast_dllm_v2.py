"""Fast-dLLM v2: Qwen2's stack and names, block-causal, predictions shifted by one (arXiv:2509.26328)."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN2_KEYS, both_ways, shape

FAST_DLLM_V2 = register(
    FamilySpec(
        name="fast_dllm_v2",
        summary="Fast-dLLM v2, and causal models adapted by scripts/adapt_text.py",
        matches=lambda config: config.get("model_type") in ("Fast_dLLM_Qwen", "fast_dllm_v2"),
        decoder=lambda config: shape(config, "qwen2", qkv_bias=True),
        names=NAMES,
        attention="block-causal",
        shift=1,
        keys=both_ways(QWEN2_KEYS),
        mask=(151665, "|<MASK>|"),
        turn_ends={151645: "<|im_end|>"},
        block=32,
        harmless=HARMLESS,
    )
)
