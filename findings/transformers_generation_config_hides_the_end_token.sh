#!/usr/bin/env bash
# transformers: config.json names the end token, and without a generation_config.json generate stops there. A
# generation_config.json that sets only a temperature, as one writes it to ship sampling defaults, hides it: keys that it
# leaves out are not taken from config.json, so text goes on after the end token up to the length limit. Whether the end
# of a row is known depends on the presence of a file that does not mention it. Nothing is logged.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import logging
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LogitsProcessor, LogitsProcessorList

END = 2
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
transformers.utils.logging.disable_default_handler()
transformers.utils.logging.add_handler(handler)


class WritesTheEnd(LogitsProcessor):
    """The model writes its end token at each step, so that it shows whether generate stops there."""

    def __call__(self, input_ids, scores):
        return torch.full_like(scores, -1e9).index_fill(1, torch.tensor([END]), 0.0)


folder = Path(sys.argv[1]) / "model"
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=64, pad_token_id=0, eos_token_id=END, **size)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
file = folder / "generation_config.json"
prompt = torch.randint(3, 64, (1, 6))


def written():
    """How many tokens are written of 8, and what was logged."""
    said.clear()
    model = AutoModelForCausalLM.from_pretrained(folder)
    out = model.generate(prompt, max_new_tokens=8, do_sample=False, logits_processor=LogitsProcessorList([WritesTheEnd()]))
    return out.shape[1] - 6, [line for line in said if "eos" in line or "end" in line]


file.unlink(missing_ok=True)
alone, _ = written()
file.write_text(json.dumps({"temperature": 0.7, "do_sample": True}))
beside, lines = written()
print("transformers", transformers.__version__, "config.json eos_token_id", json.loads((folder / "config.json").read_text())["eos_token_id"])
print("guess: what generation_config.json leaves out is that of config.json, so both stop after one token")
print(f"seen: without the file {alone} token is written, with it {beside}; logged about it: {lines}")
sys.exit((alone, beside, lines) != (1, 8, []))
PY
