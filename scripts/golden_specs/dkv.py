"""dKV-Cache on LLaDA and Dream."""

from __future__ import annotations

from golden_specs import Call, Case, Reader


def _dkv(case: Case) -> Call | None:
    p = case["params"]
    if p["enable_cache"]:
        return None
    return f"fixed:steps={p['steps']},reference=true", {"block_length": p["block_length"]}


CALLS: dict[str, Reader] = {
    "dkv_decode": _dkv,
}
