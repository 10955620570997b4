#!/usr/bin/env bash
# diffusers: MagCache skips the blocks of a model in some steps and adds the last residual in their place. With guidance
# by a negative prompt it keeps one residual and one count of steps for each branch, if the pipeline names the branch.
# Some pipelines do not (Flux Kontext, image to image and inpainting of Flux, Chroma, Wan video to video): there it
# takes both for one, so that a skipped call gets the residual of the other prompt, and the ratios of ten steps are used
# up in five. The picture is far off, silently; the first-block and TaylorSeer caches raise an error there.
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
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxPipeline
from diffusers import FluxTransformer2DModel, MagCacheConfig

torch.manual_seed(0)
model = FluxTransformer2DModel(
    in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
    joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
).eval()  # fmt: skip
nothing = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
pipes = {
    kind: kind(FlowMatchEulerDiscreteScheduler(), vae=AutoencoderKL(block_out_channels=(4, 4), norm_num_groups=1,
               down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2),
               transformer=model, **nothing)
    for kind in (FluxPipeline, FluxKontextPipeline)
}  # fmt: skip
prompts = {f"{side}prompt_embeds": torch.randn(1, 4, 32) for side in ("", "negative_")}
prompts |= {f"{side}pooled_prompt_embeds": torch.randn(1, 32) for side in ("", "negative_")}
latents = torch.randn(1, 64, 16)


def picture(kind):
    """The picture of a prompt and a negative prompt, and how often the model computed its second block."""
    seen = []
    block = model.transformer_blocks[1].attn.register_forward_hook(lambda *_: seen.append(1))
    pipe, size = pipes[kind], {"max_area": 32 * 32} if kind is FluxKontextPipeline else {}
    pipe.set_progress_bar_config(disable=True)
    drawn = pipe(height=32, width=32, num_inference_steps=10, latents=latents, true_cfg_scale=4.0,
                 output_type="latent", **prompts, **size).images  # fmt: skip
    block.remove()
    return drawn, len(seen)


whole = {kind: picture(kind)[0] for kind in pipes}
model.enable_cache(MagCacheConfig(mag_ratios=[1.0] * 10, num_inference_steps=10, max_skip_steps=1))
cached = {kind: picture(kind) for kind in pipes}
error = [float((cached[kind][0] - whole[kind]).norm() / (whole[kind] - latents).norm()) for kind in pipes]
calls = [count for _, count in cached.values()]
same = torch.equal(*whole.values())
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: both pipelines draw one picture without the cache, and one with it")
print(f"without the cache: {'the same picture' if same else 'two pictures'}")
print(f"error by the cache: FluxPipeline {error[0]:.1%}, FluxKontextPipeline {error[1]:.1%}; computed blocks {calls}")
sys.exit(not (same and calls[0] == calls[1] and error[1] > 5 * error[0]))
PY
