#!/usr/bin/env bash
# diffusers: LLaDA2Pipeline replaces mask tokens by the model's predictions, and the mask itself may be the prediction.
# If the model is sure of it at one position, that position passes the threshold at each step, fills the step's share,
# and stays masked: nothing else of its block is ever committed, and the answer is returned with a block of masks.
# Decoded without special tokens it is a shorter text, and nothing is said. One row of a head that was quantized or
# never trained is enough.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import logging
import sys
from types import SimpleNamespace

import diffusers
import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline

logging.disable()
VOCABULARY, MASK, BLOCK, NEW = 20, 19, 8, 16
torch.manual_seed(0)
table = torch.randn(64, VOCABULARY)
table[:, MASK] = -30
table[6, MASK] = 30  # sure of the mask at one position
best = table[:, :MASK].argmax(-1)


class Predictor(torch.nn.Module):
    """Predicts by position alone."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(table)
        self.forwards = 0

    dtype, device = torch.float32, torch.device("cpu")

    def forward(self, ids, attention_mask=None, position_ids=None):
        self.forwards += 1
        return SimpleNamespace(logits=self.table[position_ids].expand(len(ids), -1, -1))


def answer(forbidden):
    model = Predictor()
    if forbidden:
        with torch.no_grad():
            model.table[:, MASK] = -30
    pipeline = LLaDA2Pipeline(model=model, scheduler=BlockRefinementScheduler(block_length=BLOCK), tokenizer=None)
    pipeline.set_progress_bar_config(disable=True)
    out = pipeline(
        input_ids=torch.tensor([[1, 2]]), gen_length=NEW, num_inference_steps=BLOCK, mask_token_id=MASK,
        eos_early_stop=False, output_type="seq", threshold=0.95,
    )  # fmt: skip
    return out.sequences[0].tolist(), model.forwards


seen, forwards = answer(forbidden=False)
without, _ = answer(forbidden=True)
masks = [2 + place for place, token in enumerate(seen) if token == MASK]
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: an answer has no mask tokens, or one at most")
print(f"seen: {seen}, with masks at the positions {masks}, after {forwards} forwards")
print("without that position's mask:", without)
sys.exit(not (masks == [2, 3, 4, 5, 6, 7] and without == best[2 : 2 + NEW].tolist()))
PY
