"""The authors' recorded outputs are matched, and the script that says so would notice if they were not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
# Early stops of Fast-dLLM, where what follows an end token is overwritten.
DECLARED = {"fastdllm_dual": 1, "fastdllm_none": 1, "fastdllm_prefix": 1}


def replay(folder: Path) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, str(ROOT / "scripts" / "replay_golden.py"), str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.returncode, json.loads(done.stdout)["methods"], done.stderr


def test_every_recorded_case_of_the_built_methods_matches() -> None:
    status, methods, errors = replay(GOLDEN)
    assert status == 0, errors
    for name, counts in methods.items():
        assert counts["matched"] + counts["declared"] == counts["total"], (name, counts)
        assert counts["skipped"] == 0
    declared = {name: counts["declared"] for name, counts in methods.items() if counts["declared"]}
    assert declared == DECLARED
    assert len(methods) >= 48
    assert sum(counts["matched"] for counts in methods.values()) >= 190


@pytest.mark.parametrize("part", ["output_ids", "steps", "nfe", "logits"])
def test_a_changed_record_is_a_mismatch(part: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "llada", tmp_path / "llada")
    file = tmp_path / "llada" / "cases.json"
    cases = json.loads(file.read_text())
    if part == "logits":
        case = next(case for case in cases if case["method"] == "forward_logits")
        case["input_ids"][3] = (case["input_ids"][3] + 1) % 100
    else:
        case = next(case for case in cases if case["method"] == "fastdllm_none")
        if part == "output_ids":
            case["output_ids"][-1] ^= 1
        elif part == "steps":
            case["steps"][0], case["steps"][1] = case["steps"][1], case["steps"][0]
        else:
            case["steps"].append([[36], [1]])
    file.write_text(json.dumps([case]))
    status, methods, errors = replay(tmp_path)
    assert status == 1
    assert case["id"] in errors
    assert methods[case["method"]]["matched"] == 0
