"""DreamReasoner: Qwen3's stack, block-causal, predictions at their own position, under Dream's model_type.

Its norms of queries and keys, which Dream does not have, tell the two apart.
"""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QUERY_NORM, QWEN3_KEYS, both_ways, shape

DREAM_REASONER = register(
    FamilySpec(
        name="dream_reasoner",
        summary="DreamReasoner",
        matches=lambda config: config.get("model_type") == "Dream",
        decoder=lambda config: shape(config, "qwen3", qkv_bias=bool(config.get("attention_bias")), qk_norm=True),
        names=NAMES,
        has=(QUERY_NORM,),
        attention="block-causal",
        shift=0,
        keys=both_ways(QWEN3_KEYS),
        mask=(151666, "<|mask|>"),
        turn_ends={151645: "<|im_end|>"},
        block=32,
        harmless=HARMLESS,
    )
)
