"""dInfer on LLaDA."""

from __future__ import annotations

from golden_specs import Call, Case, Reader


def _dinfer(case: Case) -> Call:
    p = case["params"]
    every = f":refresh={p['cache_update_freq']},reference=true" if p.get("cache_update_freq") else ""
    cache = f"@{p['cache']}{every}" if p["cache"] else ""
    align = {"block_align": "absolute"} if p.get("start_block_align") else {}
    spec = f"threshold:tau={p['threshold']}+eos:reference=true{cache}"
    return spec, {"block_length": p["block_length"], "stop_ids": [p["eos_id"]], **align}


CALLS: dict[str, Reader] = {
    "dinfer_threshold": _dinfer,
}
