#!/usr/bin/env bash
# transformers: generate of DiffusionGemma adds its temperature schedule to the very list of logits processors that it
# is given. A list that is made once and passed to each call, as one does in a loop over prompts, grows: the second call
# divides the logits by the temperature twice, the tenth ten times, and sampling turns greedy. The same holds for a list
# that is empty. generate of a causal model leaves its list as it is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList, TemperatureLogitsWarper
from transformers.models.gemma4 import Gemma4VisionConfig

VOCABULARY, CALLS = 64, 6
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
text = DiffusionGemmaTextConfig(
    vocab_size=VOCABULARY, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=6,
    global_head_dim=16, num_global_key_value_heads=1, num_experts=4, top_k_experts=2, moe_intermediate_size=12, **sizes
)  # fmt: skip
vision = Gemma4VisionConfig(num_hidden_layers=1, **sizes)
diffusion = DiffusionGemmaForBlockDiffusion(
    DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=16)
).eval()
causal = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=1, **sizes)).eval()
prompt = torch.randint(3, VOCABULARY, (1, 9))


def answers(lists):
    """The answers of one prompt and seed, with each of the lists of processors."""
    found = []
    for processors in lists:
        torch.manual_seed(0)
        out = diffusion.generate(prompt, logits_processor=processors, max_new_tokens=16, max_denoising_steps=6)
        found.append(out.sequences[0, prompt.shape[1] :].tolist())
    return found


kept, given = LogitsProcessorList(), LogitsProcessorList([TemperatureLogitsWarper(0.9)])
fresh = answers([LogitsProcessorList() for _ in range(CALLS)])
again = answers([kept] * CALLS)
for _ in range(CALLS):
    causal.generate(prompt, attention_mask=torch.ones_like(prompt), logits_processor=given, max_new_tokens=2)
logits = torch.tensor([[[0.0, 1.0]]])
shares = [float(logits.softmax(-1)[0, 0, 1])]
for processor in kept:
    logits = processor(prompt, logits, cur_step=6)
    shares.append(float(logits.softmax(-1)[0, 0, 1]))
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: with one seed, all calls give one answer, with one list of processors or a new one each time")
print("new lists: equal answers:", all(one == fresh[0] for one in fresh))
print("one list: calls whose answer is that of the first:", sum(one == again[0] for one in again), "of", CALLS)
print("one list: processors in it after the calls:", len(kept), "in that of a causal model:", len(given))
print("probability of the better of two tokens at the first step, by call:", *(f"{share:.3f}" for share in shares[1:]))
sys.exit(not (all(one == fresh[0] for one in fresh) and again[0] == fresh[0] and again[-1] != again[0]
              and len(kept) == CALLS and len(given) == 1 and shares[-1] > 0.95))
PY
