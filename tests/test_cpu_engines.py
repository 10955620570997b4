"""benchmarks/cpu_engines.py: rows from turns, tables and the page; what peers print; workers that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.script_modules import script_module

ROOT = Path(__file__).resolve().parents[1]


cpu_engines = script_module("benchmarks/cpu_engines.py")


def turn(engine: str, mode: str, prompt: int, seconds: float, **more: Any) -> dict[str, Any]:
    times = {"seconds": seconds, "cpu_seconds": seconds / 2, "first_seconds": 0.5, "first_cpu_seconds": 0.25}
    tokens = {"tokens": [1, 2, 3], "decoded": 3, "peak": 200_000_000, "round": 0}
    return {"engine": engine, "mode": mode, "prompt": prompt, **times, **tokens, **more}


def document(*turns: dict[str, Any], clock: str = "wall") -> dict[str, Any]:
    machine = {"date": "2026-11-28", "processor": "AVX2, no AVX-512", "threads": 1, "clock": clock}
    model = {"model": "toy.gguf", "model_bytes": 98_000_000, "max_new_tokens": 3, "versions": {"a: vllm": "0.32"}}
    return {**machine, **model, "prompts": [7, 9], "prompt_tokens": [10, 30], "turns": list(turns), "left": []}


def row(rows: list[dict[str, Any]], engine: str, mode: str) -> dict[str, Any]:
    return next(row for row in rows if (row["engine"], row["mode"]) == (engine, mode))


def test_rates_count_all_time_and_leave_out_the_first_token_for_decoding() -> None:
    turns = [turn("a", "plain", 7, 1.5), turn("a", "plain", 9, 2.5)]
    [own] = cpu_engines.text_rows(document(*turns))
    assert own["rate"] == 6 / 4
    assert own["decoding"] == 4 / 3  # two tokens of each prompt come after the first
    assert own["prefill"] == 40 / 1.0
    assert own["busy"] == 0.5
    [own] = cpu_engines.text_rows(document(*turns, clock="process"))
    assert (own["rate"], own["decoding"], own["prefill"]) == (6 / 2, 4 / 1.5, 40 / 0.5)


def test_rounds_of_a_prompt_count_with_their_median() -> None:
    turns = [turn("a", "plain", 7, seconds, round=i) for i, seconds in enumerate((1.0, 9.0, 2.0))]
    [own] = cpu_engines.text_rows(document(*turns))
    assert own["rate"] == 3 / 2.0


def test_tokens_are_compared_with_the_engine_s_own_plain_ones_and_with_float32() -> None:
    turns = [
        turn("a", "plain", 7, 1.0), turn("a", "plain", 9, 1.0),
        turn("a", "lookup", 7, 0.6), turn("a", "lookup", 9, 0.6, tokens=[1, 2, 4]),
        turn("transformers float32", "plain", 7, 1.0), turn("transformers float32", "plain", 9, 1.0, tokens=[5]),
    ]  # fmt: skip
    rows = cpu_engines.text_rows(document(*turns))
    assert row(rows, "a", "lookup")["lossless"] == 1
    assert row(rows, "a", "plain")["lossless"] == 2
    assert row(rows, "a", "plain")["as_reference"] == 1
    partial = cpu_engines.text_rows(document(*turns[1:]))
    assert row(partial, "a", "lookup")["lossless"] is None  # plain decoding lacks a prompt


def test_the_table_has_the_best_speculation_and_says_what_is_left_out() -> None:
    turns = [turn("pardec packed", mode, prompt, seconds) for prompt in (7, 9)
             for mode, seconds in (("plain", 2.0), ("lookup", 1.0), ("eagle", 0.8))]  # fmt: skip
    own = document(*turns, *(turn("OpenVINO GenAI", "plain", prompt, 3.0) for prompt in (7, 9)))
    own["left"] = [
        {"engine": "vLLM", "reason": "no wheel"},
        {"engine": "OpenVINO GenAI", "modes": ["lookup"], "reason": "x"},
    ]
    lines = cpu_engines.text_tables(own).splitlines()
    assert lines[2] == "| pardec packed | 1.5 | 1.3 | 40 | 3.8 (eagle) | 2 of 2 |  | 200 | 0.50 |  |"
    assert lines[3].startswith("| OpenVINO GenAI | 1.0 | 0.8 | 40 | none |")
    assert lines[3].endswith("| lookup: x |")
    assert lines[4] == "| vLLM | not available |  |  |  |  |  |  |  | no wheel |"
    assert "- plain, of OpenVINO's plain: 1.50 times (pardec packed, plain; OpenVINO GenAI, plain)" in lines
    assert any(
        line.startswith("- lossless, of the fastest peer in any mode: 3.75 times (pardec packed, eagle")
        for line in lines
    )


def test_a_lossy_speculation_is_not_compared_with_the_peers() -> None:
    turns = [turn("pardec", "plain", 7, 2.0), turn("pardec", "eagle", 7, 0.5, tokens=[9]), turn("x", "plain", 7, 2.0)]
    own = document(*turns)
    assert not [line for line in cpu_engines.ratios(cpu_engines.text_rows(own)) if "eagle" in line]


def test_the_forwards_of_llama_diffusion_cli_are_counted_and_not_taken_from_the_steps() -> None:
    said = "".join(f"\rdiffusion step: {i}/12 [=  ] 0%" for i in range(9))
    said += "\ntotal time: 325.18ms, time per step: 27.10ms, sampling time per step: 0.10ms\n"
    measured = cpu_engines.parse_diffusion(said, 12)
    assert measured == {"forwards": 9, "ms": pytest.approx(325.18 / 9), "sampling_ms": pytest.approx(1.2 / 9)}
    with pytest.raises(cpu_engines.Left, match=r"llama-diffusion-cli failed: error: unsupported model"):
        cpu_engines.parse_diffusion("\nerror: unsupported model for diffusion", 12)


def test_forwards_of_masked_models_are_medians_beside_the_peer() -> None:
    def turns(engine: str, cache: str, *times: float) -> list[dict[str, Any]]:
        figures = {"engine": engine, "type": "Q4_0", "cache": cache, "forwards": 64, "peak": 1e8}
        return [{**figures, "ms": ms, "cpu_ms": 2 * ms} for ms in times]

    own = {"clock": "wall", "left": [{"engine": "x", "type": "Q8_0", "reason": "none"}]}
    own["turns"] = turns("llama-diffusion-cli", "", 40.0, 44.0, 90.0) + turns("pardec packed", "@dual", 11.0)
    lines = cpu_engines.masked_table(own).splitlines()
    assert lines[2] == "| Q4_0 | llama-diffusion-cli | none | 64 | 44.0 | 1.00 | 100 |"
    assert lines[3] == "| Q4_0 | pardec packed | @dual | 64 | 11.0 | 4.00 | 100 |"
    assert lines[4] == "| Q8_0 | x |  |  | not available |  | none |"


def test_the_processor_is_named_by_its_features() -> None:
    assert cpu_engines.processor_features(["fma", "avx2"]) == "AVX2, no AVX-512"
    assert cpu_engines.processor_features(["avx2", "avx512f", "avx512_vnni"]) == "AVX2, AVX-512, AVX-512 VNNI"
    assert cpu_engines.processor_features([]) == "unknown"


def test_the_line_of_pip_that_says_what_is_wrong() -> None:
    said = "WARNING: x\nERROR: no version\nERROR: No matching distribution found for y==1\nnotice: z\n"
    assert cpu_engines.pip_error(said) == "No matching distribution found for y==1"
    assert cpu_engines.pip_error("") == "pip failed"


def test_the_page_has_only_the_tables_that_were_measured() -> None:
    text = document(turn("a", "plain", 7, 1.0), turn("a", "plain", 9, 1.0))
    page = cpu_engines.page({"text": text})
    assert "1 thread of a processor with AVX2, no AVX-512, time on the clock; 2026-11-28." in page
    assert "Versions: vllm 0.32." in page
    assert "## Memory" not in page
    figures = {"engine": "a", "load_seconds": 3.0, "forwards": 8, "seconds": 60.0, "peak": 5.5e9}
    memory = {**text, "bytes": 4.9e9, "rows": [figures], "left": [{"engine": "b", "reason": "no"}]}
    page = cpu_engines.page({"memory": memory})
    assert "| a | 3.0 | 8 | 60.0 | 5.50 |\n| b |  |  | not available: no |  |" in page
    assert "## Text" not in page


def test_text_of_another_processor_stands_beside_the_table() -> None:
    first = document(turn("a", "plain", 7, 1.0), turn("a", "plain", 9, 1.0))
    second = {**first, "processor": "AVX2, AVX-512", "date": "2026-11-29"}
    assert cpu_engines.place({}, "text", first) == cpu_engines.place({"text": first}, "text", first) == "text"
    key = cpu_engines.place({"text": first}, "text", second)
    assert key == "text, AVX2, AVX-512"
    page = cpu_engines.page({"text": first, key: second})
    assert page.index("## Text\n") < page.index(
        "## Text on another processor\n\nAs above, with some of the engines: 2 first"
    )
    assert "AVX2, AVX-512, time on the clock; 2026-11-29." in page


def test_a_worker_measures_answers_and_outlives_errors() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import loop\n"
        "class Engine:\n"
        "    def load(self, size): print('noise'); self.kept = bytearray(size); return {'name': '1.0'}\n"
        "    def decode(self, mode, ids, new):\n"
        "        if mode == 'bad': raise ValueError('no such mode\\nmore')\n"
        "        return ids[:new]\n"
        "loop.serve(Engine())\n"
    )
    requests = [
        {"do": "load", "size": 50_000_000},
        {"do": "decode", "mode": "bad", "ids": [], "new": 1},
        {"do": "decode", "mode": "plain", "ids": [4, 5, 6], "new": 2},
    ]
    command = [sys.executable, "-c", program, str(ROOT / "benchmarks" / "cpu_workers")]
    given = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    load, bad, plain = map(json.loads, done.stdout.splitlines())
    assert load["result"] == {"name": "1.0"}
    assert bad == {"error": "ValueError: no such mode"}
    assert plain["result"] == [4, 5]
    assert {"seconds", "cpu_seconds", "resident", "peak"} <= plain.keys()


def test_an_engine_whose_process_dies_is_left_out_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dead.py").write_text("import sys; sys.exit('no such instruction set')\n")
    monkeypatch.setattr(cpu_engines, "WORKERS", tmp_path)
    worker = cpu_engines.Worker(Path(sys.executable), "dead", tmp_path / "log.txt", 1)
    with pytest.raises(cpu_engines.Left, match="ended with exit status 1: no such instruction set"):
        worker.ask("load")


def test_answers_end_at_the_first_end_token() -> None:
    assert cpu_engines.until_end([5, 6, 2, 7], [2]) == [5, 6]
    assert cpu_engines.until_end([5, 6], [2]) == [5, 6]
