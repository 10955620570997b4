#!/usr/bin/env bash
# timm: a file of one's own weights is loaded by pretrained=True and pretrained_cfg_overlay={"file": ...}, with the
# options that the model was trained with. A head of another number of classes than the 1,000 of the named model is not
# loaded: timm compares num_classes with its own table and not with the file, takes the head for one that is to be
# trained anew, and leaves it random. The fine-tuned classifier answers by chance; a line of the log at level INFO,
# which is not shown by default, is all that is said. checkpoint_path, or num_classes in the overlay too, loads the
# head.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchvision==0.28.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check timm==1.0.31 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
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
from safetensors.torch import save_file

SIZES = {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2}
torch.manual_seed(0)
picture = torch.randn(8, 3, 32, 32)
folder = sys.argv[1]


@torch.inference_mode()
def off(classes, **options):
    """The largest difference of features, and of logits, to the model that was saved."""
    trained = timm.create_model("vit_tiny_patch16_224", num_classes=classes, **SIZES).eval()
    torch.nn.init.normal_(trained.head.weight)
    save_file(trained.state_dict(), f"{folder}/model.safetensors")
    loaded = timm.create_model("vit_tiny_patch16_224", num_classes=classes, **SIZES, **options).eval()
    features = (loaded.forward_features(picture) - trained.forward_features(picture)).abs().max()
    return float(features), float((loaded(picture) - trained(picture)).abs().max())


file = f"{folder}/model.safetensors"
overlay = {"pretrained": True, "pretrained_cfg_overlay": {"file": file}}
print("timm", metadata.version("timm"), "torch", torch.__version__)
print("guess: a file with a head of 7 classes, loaded into a model of 7 classes, gives the logits that it gave")
rows = {
    "7 classes, by the file in the overlay": off(7, **overlay),
    "7 classes, by the file and num_classes in the overlay": off(
        7, pretrained=True, pretrained_cfg_overlay={"file": file, "num_classes": 7}
    ),
    "7 classes, by checkpoint_path": off(7, checkpoint_path=file),
    "1000 classes, by the file in the overlay": off(1000, **overlay),
}
for name, (features, logits) in rows.items():
    print(f"{name}: features differ by {features:.1e}, logits by {logits:.1e}")
lost, *right = rows.values()
sys.exit(not (lost[0] < 1e-6 and lost[1] > 0.1 and all(max(pair) < 1e-5 for pair in right)))
PY
