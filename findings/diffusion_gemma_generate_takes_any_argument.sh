#!/usr/bin/env bash
# transformers: generate of a causal model refuses an argument that it does not know. generate of DiffusionGemma, a
# diffusion model with the same call, takes every argument and uses few: do_sample, temperature, top_k, penalties,
# minimum lengths, banned words, stop strings, the number of answers, and any misspelled name change nothing and are not
# reported. Its configuration class refuses the same names. Settings that are carried over from a causal model seem to
# be followed.
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
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.diffusion_gemma.generation_diffusion_gemma import DiffusionGemmaGenerationConfig
from transformers.models.gemma4 import Gemma4VisionConfig

VOCABULARY, CANVAS = 64, 8
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
text = DiffusionGemmaTextConfig(
    vocab_size=VOCABULARY, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=6,
    global_head_dim=16, num_global_key_value_heads=1, num_experts=4, top_k_experts=2, moe_intermediate_size=12, **sizes
)  # fmt: skip
vision = Gemma4VisionConfig(num_hidden_layers=1, **sizes)
config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS)
diffusion = DiffusionGemmaForBlockDiffusion(config).eval()
with torch.no_grad():
    for parameter in diffusion.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
causal = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=1, **sizes)).eval()
prompt = torch.randint(3, VOCABULARY, (1, 9))


def answer(**more):
    torch.manual_seed(0)
    return diffusion.generate(prompt, max_new_tokens=16, **more).sequences[:, prompt.shape[1] :].tolist()


def refused(call, **more):
    try:
        call(**more)
    except (TypeError, ValueError):
        return True
    return False


plain = answer()
cases = [
    {"do_sample": False}, {"temperature": 0.01}, {"top_k": 1}, {"repetition_penalty": 9.0}, {"num_return_sequences": 3},
    {"min_new_tokens": 12}, {"bad_words_ids": [[token] for token in plain[0]]}, {"stop_strings": ["a"]},
    {"max_denoising_step": 1}, {"entropy_bund": 9.0},
]  # fmt: skip
same = [answer(**case) == plain for case in cases]
by_config = [refused(DiffusionGemmaGenerationConfig, **case) for case in cases]
typo = refused(causal.generate, inputs=prompt, attention_mask=torch.ones_like(prompt), entropy_bund=9.0)
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: what DiffusionGemma does not use is refused, as unknown arguments of a causal model are:", typo)
for case, equal, named in zip(cases, same, by_config):
    print(f"{str(case)[:50]}: taken, same tokens: {equal}; refused by DiffusionGemmaGenerationConfig: {named}")
print("max_denoising_steps=1, which it uses: same tokens:", answer(max_denoising_steps=1) == plain)
sys.exit(not (all(same) and all(by_config) and typo and answer(max_denoising_steps=1) != plain))
PY
