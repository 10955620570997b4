"""dInfer on LLaDA."""

from __future__ import annotations

from golden_specs import Call, Case, Reader


def select_of(case: Case) -> str:
    """The part of the spec that corresponds to a case's decoder."""
    p = case["params"]
    tau, method = p["threshold"], case["method"]
    if "credit" in method:
        credit = f"credit:alpha={p['credit_alpha']},beta={p['decay_beta']},gamma={p['boost_gamma']}"
        return f"{credit}+threshold:tau={tau}"
    if "hierarchy" in method:
        high, low = "none" if tau is None else tau, p["low_threshold"] or 0
        return f"hierarchy:high={high},low={low},reference=true"
    return f"threshold:tau={tau}"


def _dinfer(case: Case) -> Call:
    p = case["params"]
    every = f":refresh={p['cache_update_freq']},reference=true" if p.get("cache_update_freq") else ""
    cache = f"@{p['cache']}{every}" if p["cache"] else ""
    align = {"block_align": "absolute"} if p.get("start_block_align") else {}
    spec = f"{select_of(case)}+eos:reference=true{cache}"
    return spec, {"block_length": p["block_length"], "stop_ids": [p["eos_id"]], **align}


def _fast_v2(case: Case) -> Call:
    return select_of(case), {"block_length": case["params"]["block_length"]}


CALLS: dict[str, Reader] = {
    "dinfer_threshold": _dinfer,
    "dinfer_credit": _dinfer,
    "dinfer_hierarchy": _dinfer,
    "dinfer_hierarchy_fast_v2": _fast_v2,
}
