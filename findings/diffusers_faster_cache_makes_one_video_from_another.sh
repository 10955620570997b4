#!/usr/bin/env bash
# diffusers: FasterCache saves the unconditional half of a batch by guessing it from the conditional half. Which half is
# which it takes from the order alone, and it does not look whether there is guidance: at guidance_scale=1, as with a
# LoRA for few steps, a batch of two prompts is two videos, and in most steps below timestep 641 the first is made from
# the second: another second prompt, another first video. Nothing says so; one prompt alone is an IndexError.
# is_guidance_distilled=True is right there, although the model is not distilled; the scale belongs to each call.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import logging
import sys

import torch

logging.disable(logging.WARNING)
import diffusers
from diffusers import AutoencoderKLCogVideoX, CogVideoXPipeline, CogVideoXTransformer3DModel, DDIMScheduler
from diffusers import FasterCacheConfig

torch.manual_seed(0)
model = CogVideoXTransformer3DModel(
    num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=32,
    num_layers=2, sample_width=4, sample_height=4, sample_frames=9, max_text_seq_length=16,
).eval()  # fmt: skip
vae = AutoencoderKLCogVideoX(block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2)
pipe = CogVideoXPipeline(tokenizer=None, text_encoder=None, vae=vae, transformer=model, scheduler=DDIMScheduler())
pipe.set_progress_bar_config(disable=True)
prompts, latents = torch.randn(3, 16, 32), torch.randn(2, 3, 4, 4, 4)


def first_video(second_prompt, scale):
    """The first of two videos, where the second has the prompt of this number."""
    pair = prompts[[0, second_prompt]]
    return pipe(
        prompt_embeds=pair, negative_prompt_embeds=torch.zeros_like(pair), latents=latents.clone(), height=32, width=32,
        num_frames=9, num_inference_steps=10, guidance_scale=scale, output_type="latent",
    ).frames[0]  # fmt: skip


def change(scale):
    """By how much another second prompt changes the first video."""
    one, other = first_video(1, scale), first_video(2, scale)
    return float((one - other).norm() / one.norm())


def cached(scale, **settings):
    """The same with the cache."""
    model.enable_cache(FasterCacheConfig(
        current_timestep_callback=lambda: pipe.current_timestep, attention_weight_callback=lambda _: 0.3,
        tensor_format="BFCHW", **settings,
    ))  # fmt: skip
    seen = change(scale)
    model.disable_cache()
    return seen


whole, guided, alone, told = change(1.0), cached(6.0), cached(1.0), cached(1.0, is_guidance_distilled=True)
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: the first video of two does not depend on the prompt of the second")
print(f"change of the first video: {whole:.1%} without the cache; with it {guided:.1%} at guidance_scale=6,")
print(f"{alone:.1%} at guidance_scale=1, and {told:.1%} there with is_guidance_distilled")
sys.exit(not (max(whole, guided, told) < 1e-4 and alone > 0.02))
PY
