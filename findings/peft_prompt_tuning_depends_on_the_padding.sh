#!/usr/bin/env bash
# PEFT: prompts of different lengths are padded on the left, and a causal model gives each the tokens that it gives it
# alone. With prompt tuning it does not: the trained vectors are put before the padding, and the positions, which
# generate counts without it, are dropped, of which a Python warning speaks and not of its effect. The padding then
# moves the prompt away from the vectors: an adapter's answers depend on the longest prompt of the batch. With prefix
# tuning and LoRA they do not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import logging
import sys
import warnings

import torch

logging.disable()
warnings.simplefilter("ignore")
import peft  # noqa: E402
import transformers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
ends = {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
prompts = torch.randint(1, 26, (8, 7), generator=torch.Generator().manual_seed(0))
padded = torch.cat([torch.zeros(8, 4, dtype=torch.long), prompts], 1)


def tokens(model, rows):
    plain = {"max_new_tokens": 12, "do_sample": False}
    return model.generate(input_ids=rows, attention_mask=(rows != 0).long(), **plain)[:, rows.shape[1] :]


def equal(config):
    """How many of the prompts have the same answer alone and padded."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=26, initializer_range=0.6, **size, **ends))
    model = model.eval() if config is None else peft.get_peft_model(model, config).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return int((tokens(model, prompts) == tokens(model, padded)).all(1).sum())


causal = {"task_type": "CAUSAL_LM"}
seen = {
    "no adapter": equal(None),
    "LoRA": equal(peft.LoraConfig(**causal, r=2, target_modules=["q_proj"])),
    "prefix tuning": equal(peft.PrefixTuningConfig(**causal, num_virtual_tokens=5)),
    "prompt tuning": equal(peft.PromptTuningConfig(**causal, num_virtual_tokens=5)),
}
print("PEFT", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
print("guess: with padding on the left and its mask, a prompt has the answer that it has alone")
for name, count in seen.items():
    print(f"seen, {name}: {count} of {len(prompts)} answers are the same with four pad tokens before the prompt")
sys.exit(not ([*seen.values()][:3] == [8, 8, 8] and seen["prompt tuning"] < 4))
PY
