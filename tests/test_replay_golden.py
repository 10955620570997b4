"""The authors' recorded outputs are matched, and the replay script detects injected differences."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
Replay = Callable[[Path], tuple[int, dict[str, Any], str]]
# Early stops of Fast-dLLM, where what follows an end token is overwritten; SDAR blocks that begin in the prompt, whose
# tokens the authors' code commits again; ends and tails of the LLaDA2 pipeline (DECLARED of the script says why).
DECLARED = {"fastdllm_dual": 1, "fastdllm_none": 1, "fastdllm_prefix": 1, "diffusers_llada2": 2}
DECLARED |= {"sjd_window_init": 4}  # start tokens copied from the left, where the authors copy the last known one
DECLARED |= {"sdar_low_confidence_dynamic": 2, "sdar_low_confidence_static": 1}


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replay:
    """The script in this process: its exit status, its counts, and its messages on mismatches."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))

    def run(folder: Path) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setattr(sys, "argv", ["replay_golden.py", str(folder), "--json"])
        status = import_module("replay_golden").main()
        told = capsys.readouterr()
        return status, json.loads(told.out)["methods"], told.err

    return run


@pytest.mark.parametrize("name", sorted(file.parent.name for file in GOLDEN.glob("*/cases.json")))
def test_the_first_and_last_recorded_case_of_each_method_match(replay: Replay, tmp_path: Path, name: str) -> None:
    """Other cases are slow tests; a method's cases are ordered from small to large parameters."""
    folder, ends = tmp_path / name, dict[str, dict[str, Any]]()
    folder.mkdir()
    for entry in (GOLDEN / name).iterdir():
        (folder / entry.name).symlink_to(entry)
    for case in json.loads((folder / "cases.json").read_text()):
        ends.setdefault(case["method"], {})["last" if case["method"] in ends else "first"] = case
    (folder / "cases.json").unlink()
    (folder / "cases.json").write_text(json.dumps([case for held in ends.values() for case in held.values()]))
    status, methods, errors = replay(folder)
    assert status == 0, errors
    for method, counts in methods.items():
        assert counts["matched"] + counts["declared"] == counts["total"] == len(ends[method])
        assert counts["declared"] <= DECLARED.get(method, 0)


@pytest.mark.slow
def test_every_recorded_case_of_the_built_methods_matches() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "replay_golden.py"), str(GOLDEN), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    methods = json.loads(done.stdout)["methods"]
    for name, counts in methods.items():
        assert counts["matched"] + counts["declared"] == counts["total"], (name, counts)
        assert counts["skipped"] == 0
    declared = {name: counts["declared"] for name, counts in methods.items() if counts["declared"]}
    assert declared == DECLARED
    assert len(methods) >= 52
    assert sum(counts["matched"] for counts in methods.values()) >= 205


def test_a_changed_record_is_a_mismatch(replay: Replay, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "llada", tmp_path / "llada")
    file = tmp_path / "llada" / "cases.json"
    cases = json.loads(file.read_text())
    decoded = next(case for case in cases if case["method"] == "fastdllm_none")
    logits = next(case for case in cases if case["method"] == "forward_logits")

    def changed(part: str) -> dict[str, Any]:
        case = deepcopy(logits if part == "logits" else decoded) | {"id": part}
        if part == "logits":
            case["input_ids"][3] = (case["input_ids"][3] + 1) % 100
        elif part == "output_ids":
            case["output_ids"][-1] ^= 1
        elif part == "steps":
            case["steps"][0], case["steps"][1] = case["steps"][1], case["steps"][0]
        else:
            case["steps"].append([[36], [1]])
        return case

    parts = ["output_ids", "steps", "nfe", "logits"]
    file.write_text(json.dumps([decoded, logits, *map(changed, parts)]))
    status, methods, errors = replay(tmp_path)
    assert status == 1
    assert [line.split()[1] for line in errors.splitlines()] == [f"{part}:" for part in parts]
    assert {name: counts["matched"] for name, counts in methods.items()} == {"fastdllm_none": 1, "forward_logits": 1}


def test_a_changed_round_of_a_window_is_a_mismatch(replay: Replay, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "llamagen", tmp_path / "llamagen")
    file = tmp_path / "llamagen" / "cases.json"
    case = next(case for case in json.loads(file.read_text()) if case["id"].startswith("sjd-t2i-w6-cfg2.0-k16"))
    at = next(at for at, turn in enumerate(case["trace"]) if turn["matched"] > 1)

    def changed(name: str) -> dict[str, Any]:
        made = deepcopy(case) | {"id": name}
        turn = made["trace"][at]
        if name == "window":
            turn["window"][1] ^= 1
        elif name == "uniform":  # of the first draft, which was accepted
            turn["uniform_for_draft"][1] = 1 - 1e-9
            turn["matched"] = 1
        elif name == "accepted":
            turn["accepted_tokens"][0] ^= 1
        elif name == "law":
            made["trace"][2]["tensors"] = made["trace"][3]["tensors"]
        else:
            made["trace"].pop()
        return made

    names = ["window", "uniform", "accepted", "law", "short"]
    file.write_text(json.dumps([case, *map(changed, names)]))
    status, methods, errors = replay(tmp_path)
    assert status == 1
    assert methods["sjd_generate"]["matched"] == 1
    assert [line.split()[1] for line in errors.splitlines()] == [f"{name}:" for name in names]
