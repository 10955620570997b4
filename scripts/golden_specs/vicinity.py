"""dInfer on LLaDA with its vicinity cache."""

from __future__ import annotations

from golden_specs import Call, Case, Reader
from golden_specs.dinfer import select_of


def _vicinity(case: Case) -> Call:
    p = case["params"]
    window = f"before={p['prefix_look']},after={p['after_look']},warmup={p['warmup_steps']},reference=true"
    align = "absolute" if p["start_block_align"] else "prompt"
    arguments = {"block_length": p["block_length"], "stop_ids": [p["eos_id"]], "block_align": align}
    return f"{select_of(case)}+eos:reference=true@vicinity:{window}", arguments


CALLS: dict[str, Reader] = {f"dinfer_vicinity_{decoder}": _vicinity for decoder in ("threshold", "credit", "hierarchy")}
