"""Presets: the setting of each paper, as a complete spec with its generate arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Preset:
    """`sampler="preset:<name>"` stands for `spec` with `arguments`; an argument given by the caller wins."""

    name: str
    spec: str
    paper: str
    summary: str
    arguments: Mapping[str, int | float] = field(default_factory=dict)


PRESETS = (
    Preset(
        "llada",
        "fixed",
        "arXiv:2502.09992",
        "LLaDA's linear schedule, most confident first, one token a forward",
        {"max_new_tokens": 256, "block_length": 32},
    ),
    Preset(
        "fast-dllm",
        "threshold:tau=0.9@dual",
        "arXiv:2505.22618",
        "Fast-dLLM: confidence threshold with the dual cache",
        {"max_new_tokens": 256, "block_length": 32},
    ),
    Preset(
        "fast-dllm-prefix",
        "threshold:tau=0.9@prefix",
        "arXiv:2505.22618",
        "Fast-dLLM: confidence threshold with the prefix cache",
        {"max_new_tokens": 256, "block_length": 32},
    ),
    Preset(
        "fast-dllm-factor",
        "factor:f=1.0@dual",
        "arXiv:2505.22618",
        "Fast-dLLM: factor rule with the dual cache",
        {"max_new_tokens": 256, "block_length": 32},
    ),
    Preset(
        "dparallel",
        "entropy_threshold:tau=0.45",
        "arXiv:2509.26488",
        "dParallel: entropy threshold, no cache",
        {"max_new_tokens": 256, "block_length": 32},
    ),
)
