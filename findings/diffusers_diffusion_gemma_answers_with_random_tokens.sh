#!/usr/bin/env bash
# diffusers and transformers: both decode DiffusionGemma by an entropy bound: at each step positions that the model is
# sure of are accepted, and the others are drawn anew, uniformly from the whole vocabulary. After the last step
# transformers answers with the model's best tokens. The pipeline of diffusers with EntropyBoundScheduler answers with
# the canvas as it stands, in which every position that was not accepted holds a random token, unless the text
# converged before. Few steps, or a text with open choices, thus give an answer with noise in it, and nothing is said;
# the next block is conditioned on it. Its other two schedulers commit the model's tokens at the last step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
import transformers
from diffusers import BlockRefinementScheduler, DiffusionGemmaPipeline, DiscreteDDIMScheduler, EntropyBoundScheduler
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig
from transformers.models.gemma4 import Gemma4VisionConfig

VOCABULARY, CANVAS, STEPS = 64, 16, 16
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
text = DiffusionGemmaTextConfig(
    vocab_size=VOCABULARY, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=6,
    global_head_dim=16, num_global_key_value_heads=1, num_experts=4, top_k_experts=2, moe_intermediate_size=12, **sizes
)  # fmt: skip
vision = Gemma4VisionConfig(num_hidden_layers=1, **sizes)
config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS)
model = DiffusionGemmaForBlockDiffusion(config).eval()
prompt, forward = torch.arange(3, 12)[None], model.forward


def never_the_upper_half(*args, **options):
    output = forward(*args, **options)
    output.logits[..., VOCABULARY // 2 :] = -1000
    return output


model.forward = never_the_upper_half


class Processor:
    eos_token_id = None

    def apply_chat_template(self, messages, **options):
        return {"input_ids": prompt}


def impossible(tokens):
    return int((tokens[:, -CANVAS:] >= VOCABULARY // 2).sum())


def by_pipeline(scheduler, steps=STEPS):
    pipeline = DiffusionGemmaPipeline(model=model, scheduler=scheduler, processor=Processor())
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    options = {"num_inference_steps": steps, "gen_length": CANVAS, "output_type": "seq"}
    return impossible(pipeline(prompt="a", generator=generator, **options).sequences)


own = impossible(model.generate(prompt, max_new_tokens=CANVAS, max_denoising_steps=STEPS).sequences)
seen = {kind.__name__: by_pipeline(kind()) for kind in (BlockRefinementScheduler, DiscreteDDIMScheduler)}
bound = by_pipeline(EntropyBoundScheduler()), by_pipeline(EntropyBoundScheduler(), 48)
print("diffusers", diffusers.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
print("guess: no answer has a token to which the model gives the probability 0")
print(f"transformers: {own} of {CANVAS} tokens have it")
for name, count in seen.items():
    print(f"diffusers, {name}: {count}")
print("diffusers, EntropyBoundScheduler: {}, with 48 steps {}".format(*bound))
sys.exit(not (own == 0 and not any(seen.values()) and min(bound) >= 4))
PY
