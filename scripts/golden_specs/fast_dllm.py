"""Fast-dLLM and dParallel on LLaDA, Fast-dLLM on Dream."""

from __future__ import annotations

from golden_specs import Call, Case, Reader


def _fast_dllm(case: Case) -> Call:
    p = case["params"]
    cache = {"none": "", "prefix": "@prefix", "dual": "@dual"}[case["method"].rsplit("_", 1)[1]]
    if p.get("factor") is not None:
        select = f"factor:f={p['factor']},reference=true"
    elif p["threshold"] is not None:
        select = f"threshold:tau={p['threshold']}"
    else:
        select = f"fixed:steps={p['steps']},reference=true"
    stop = {"stop_ids": [p["eos_id"]]} if p.get("early_stop") else {}
    return f"{select}{'+eos' if stop else ''}{cache}", {"block_length": p["block_length"], **stop}


def _dparallel(case: Case) -> Call:
    spec, arguments = _fast_dllm(case)
    return spec.replace("threshold", "entropy_threshold", 1), arguments


def _fast_dllm_dream(case: Case) -> Call:
    p = case["params"]
    cache = "dual" if p["dual_cache"] else "prefix"
    # Dream's generation settings of that time kept the 50 likeliest tokens by default.
    spec = f"confidence:of=filtered+threshold:tau={p['threshold']}@{cache}:reference=true"
    return spec, {"block_length": p["block_length"], "top_k": p.get("top_k", 50)}


def _fast_dllm_dream_threshold(case: Case) -> Call:
    p = case["params"]
    spec = f"confidence:of=filtered+carry:tau={p['threshold']},steps={p['steps']}"
    return spec, {"block_length": p["max_new_tokens"], "top_k": p.get("top_k", 50)}


def _fast_dllm_dream_entropy(case: Case) -> Call:
    p = case["params"]
    cache = "dual" if p["dual_cache"] else "prefix"
    spec = f"entropy:of=filtered+timesteps:steps={p['steps']}@{cache}:reference=true"
    return spec, {"block_length": p["block_length"], "top_k": p.get("top_k", 50)}


CALLS: dict[str, Reader] = {
    **{f"fastdllm_{cache}": _fast_dllm for cache in ("none", "prefix", "dual")},
    **{f"fastdllm_factor_{cache}": _fast_dllm for cache in ("none", "prefix", "dual")},
    **{f"dparallel_entropy_{cache}": _dparallel for cache in ("none", "prefix", "dual")},
    "fastdllm_dream_prefix": _fast_dllm_dream,
    "fastdllm_dream_dual": _fast_dllm_dream,
    "fastdllm_dream_threshold": _fast_dllm_dream_threshold,
    "fastdllm_dream_entropy_prefix": _fast_dllm_dream_entropy,
    "fastdllm_dream_entropy_dual": _fast_dllm_dream_entropy,
}
