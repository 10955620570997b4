#!/usr/bin/env bash
# diffusers: Pyramid Attention Broadcast reuses the attention of the step before. It counts calls of the model and not
# steps, and knows nothing of cond and uncond: where a pipeline calls the model twice per step (Wan, Flux with a true
# scale, QwenImage, CogView4), each second call gets the attention of the first. In Wan, with a range of 2 for spatial
# and cross attention, the negative prompt is not read in the given timesteps: both predictions are equal,
# guidance_scale=7 draws what 1 draws, and no step ever reuses another step's attention. Nothing is logged; the caches
# of blocks keep a state for each branch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import logging
import sys

import torch

logging.disable(logging.WARNING)
import diffusers
from diffusers import FlowMatchEulerDiscreteScheduler, PyramidAttentionBroadcastConfig, WanPipeline
from diffusers import WanTransformer3DModel

torch.manual_seed(0)
model = WanTransformer3DModel(
    patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
    freq_dim=16, ffn_dim=32, num_layers=3, cross_attn_norm=True, rope_max_seq_len=32,
).eval()  # fmt: skip
pipe = WanPipeline(
    tokenizer=None, text_encoder=None, vae=None, scheduler=FlowMatchEulerDiscreteScheduler(), transformer=model
)
pipe.set_progress_bar_config(disable=True)
prompt, negative, latents = torch.randn(1, 5, 16), torch.randn(1, 5, 16), torch.randn(1, 4, 2, 4, 4)


def video(scale):
    return pipe(
        prompt_embeds=prompt, negative_prompt_embeds=negative, latents=latents, height=32, width=32, num_frames=5,
        num_inference_steps=10, guidance_scale=scale, output_type="latent",
    ).frames  # fmt: skip


whole = {scale: video(scale) for scale in (1.0, 7.0)}
settings = {f"{kind}_attention_block_skip_range": 2 for kind in ("spatial", "cross")}
settings |= {f"{kind}_attention_timestep_skip_range": (-1, 1001) for kind in ("spatial", "cross")}
model.enable_cache(PyramidAttentionBroadcastConfig(current_timestep_callback=lambda: pipe.current_timestep, **settings))
cached = video(7.0)


def distance(scale):
    return float((cached - whole[scale]).norm() / whole[scale].norm())


print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: with the cache a video at guidance_scale=7 is near to the one that is drawn without it")
print(f"seen: it is {distance(7.0):.0%} off that, and {distance(1.0):.4%} off the video without guidance")
sys.exit(not (distance(7.0) > 0.2 and distance(1.0) < 1e-5))
PY
