"""Dream, Dream-Coder and DiffuCoder: Qwen2's stack and names, bidirectional, predictions shifted by one."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QUERY_NORM, QWEN2_KEYS, both_ways, shape

DREAM = register(
    FamilySpec(
        name="dream",
        summary="Dream, Dream-Coder, DiffuCoder",
        matches=lambda config: config.get("model_type") == "Dream",
        decoder=lambda config: shape(config, "qwen2", qkv_bias=True),
        names=NAMES,
        attention="bidirectional",
        shift=1,
        keys=both_ways(QWEN2_KEYS),
        mask=(151666, "<|mask|>"),
        turn_ends={151645: "<|im_end|>"},
        lacks=(QUERY_NORM,),
        harmless=HARMLESS,
    )
)
