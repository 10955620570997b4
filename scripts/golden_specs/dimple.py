"""Dimple on text."""

from __future__ import annotations

from golden_specs import Call, Case, Reader

PROPOSERS = {
    "maskgit_plus": "confidence",
    "topk_margin": "margin",
    "entropy": "entropy",
    "autoregressive": "confidence",
}


def _dimple(case: Case) -> Call:
    p = case["params"]
    cache = "@prefix:before=1" if p["use_cache"] else ""
    arguments = {"block_length": p["max_new_tokens"], "top_p": p["top_p"]}
    tau = p["alg_p_threshold"]
    tau = tau if tau is not None and tau > 0 else "none"  # 0 and less are off there
    if p["alg"] == "autoregressive" and tau == "none":
        return f"leftmost+sequential{cache}", arguments
    of = "raw" if p["use_original_confidence"] else "filtered"
    if p["decoding_pipeline"] == "dream":
        select = f"timesteps:steps={p['steps']}"
    else:
        order = "left" if p["alg"] == "autoregressive" else "score"
        select = f"confident:tau={tau},steps={p['steps']},order={order}"
    return f"{PROPOSERS[p['alg']]}:of={of}+{select},reference=true{cache}", arguments


CALLS: dict[str, Reader] = {
    f"dimple_{pipeline}_{alg}{cache}": _dimple
    for pipeline in ("dim", "dream")
    for alg in PROPOSERS
    for cache in ("", "_cache")
}
