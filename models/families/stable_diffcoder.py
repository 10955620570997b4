"""Stable-DiffCoder: Llama's stack and names, block-causal, predictions at their own position.

Its config says `model_type: llama`: the architecture, or the files it names, tell it from Llama.
"""

from __future__ import annotations

from .base import Config, FamilySpec, architecture, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, both_ways, shape


def is_stable_diffcoder(config: Config) -> bool:
    """Whether a config is one of Stable-DiffCoder."""
    named = config.get("auto_map")
    files = " ".join(map(str, named.values())) if isinstance(named, dict) else ""
    return "stablediffcoder" in architecture(config).lower() or "stable_diffcoder" in files.lower()


STABLE_DIFFCODER = register(
    FamilySpec(
        name="stable_diffcoder",
        summary="Stable-DiffCoder",
        matches=is_stable_diffcoder,
        decoder=lambda config: shape(config, "llama"),
        names=NAMES,
        attention="block-causal",
        shift=0,
        keys=both_ways(LLAMA_LIKE).also("attention_bias", "mlp_bias"),
        mask=(5, "<[MASK]>"),
        block=4,
        harmless=HARMLESS,
    )
)
