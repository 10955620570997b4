#!/usr/bin/env bash
# timm: create_optimizer_v2(model, layer_decay=0.5) makes an optimizer whose first layers learn slower than its last, as
# fine-tuning of vision transformers does. The optimizer that it returns gives all of them the full rate: the share of
# each layer is a note in its groups, lr_scale, which schedulers of timm multiply by, and no optimizer reads. With a
# constant rate, or a scheduler of PyTorch or of a trainer, the first layers move as far as the last, and any
# layer_decay is the same run. Nothing is said, and a look at the groups shows the scales.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchvision==0.28.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check timm==1.0.31 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch

try:
    import torchvision
except (
    RuntimeError
):  # built for a GPU, beside a PyTorch that is not: its own operators are missing, and not needed here
    library = torch.library.Library("torchvision", "DEF")
    for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.define(f"_{name}_backward(Tensor x) -> Tensor")
    library.define("nms(Tensor x) -> Tensor")
    library.define("qnms(Tensor x) -> Tensor")
    import torchvision
import timm
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

SIZES = {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 3}


def none(optimizer):
    return lambda step: None


def torchs(optimizer):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    return lambda step: scheduler.step()


def timms(optimizer):
    scheduler = CosineLRScheduler(optimizer, t_initial=1000, warmup_lr_init=0.0)
    return lambda step: scheduler.step_update(step) or scheduler.step(step)


def moved(scheduler, layer_decay):
    """How far each layer's projection has gone after three steps along a gradient of ones."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **SIZES)
    names = ["patch_embed.proj.weight", "blocks.0.attn.proj.weight", "blocks.1.attn.proj.weight", "head.weight"]
    weights = [model.get_parameter(name) for name in names]
    before = [weight.detach().clone() for weight in weights]
    optimizer = create_optimizer_v2(model, opt="adamw", lr=0.01, weight_decay=0.0, layer_decay=layer_decay)
    after = scheduler(optimizer)
    for step in range(1, 4):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        after(step)
    scales = sorted({group.get("lr_scale", 1.0) for group in optimizer.param_groups})
    distances = [
        round(float((one.detach() - other).abs().mean()), 4) for one, other in zip(weights, before, strict=True)
    ]
    return distances, scales


print("timm", metadata.version("timm"), "torch", torch.__version__)
print("guess: with layer_decay=0.5 the embedding moves by an eighth of what the head does, with any scheduler")
rows = {
    "no layer_decay": moved(none, None),
    "layer_decay=0.5, a constant rate": moved(none, 0.5),
    "layer_decay=0.5, PyTorch's cosine": moved(torchs, 0.5),
    "layer_decay=0.5, timm's cosine": moved(timms, 0.5),
}
for name, (distances, scales) in rows.items():
    print(f"{name}: embedding, block 0, block 1, head move by {distances}; scales {scales}")
flat = all(max(rows[name][0]) < 1.01 * min(rows[name][0]) for name in list(rows)[:3])
decayed = rows["layer_decay=0.5, timm's cosine"][0]
sys.exit(not (flat and rows["layer_decay=0.5, a constant rate"][1][0] == 0.125 and decayed[0] < 0.5 * decayed[-1]))
PY
