"""Prophet on LLaDA."""

from __future__ import annotations

from golden_specs import Call, Case, Reader


def _prophet(case: Case) -> Call:
    p, prompt = case["params"], len(case["prompt_ids"])
    gaps = p["early_exit_thresholds"] or {"early": 7.5, "mid": 5.0, "late": 2.5}
    settings = {"start": p["answer_start_pos"] - prompt, "length": 5, **gaps, "progress": "steps", "decided": "true"}
    finish = "prophet:" + ",".join(f"{key}={value}" for key, value in settings.items())
    arguments = {"block_length": p["block_length"]}
    if p["cfg_scale"]:
        arguments["cfg"] = p["cfg_scale"] + 1
    if p.get("constraints"):  # tokens that stand at given places after the prompt
        forced = {int(offset): token for offset, token in p["constraints"].items()}
        arguments["template"] = [[forced.get(offset) for offset in range(p["gen_length"])]]
    return f"fixed:steps={p['steps']},reference=true+{finish}", arguments


CALLS: dict[str, Reader] = {"prophet": _prophet}
