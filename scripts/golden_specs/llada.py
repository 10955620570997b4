"""LLaDA's own sampler."""

from __future__ import annotations

from golden_specs import Call, Case, Reader


def _llada(case: Case) -> Call:
    p = case["params"]
    guidance = {"cfg": p["cfg_scale"] + 1} if p["cfg_scale"] else {}
    return f"fixed:steps={p['steps']},reference=true", {"block_length": p["block_length"], **guidance}


CALLS: dict[str, Reader] = {
    "llada_low_confidence": _llada,
}
