#!/usr/bin/env bash
# PEFT: rank_pattern gives some modules another rank. Two adapters with the same pattern are combined by
# add_weighted_adapter with combination_type="linear", and the result runs, and is saved without a word. It cannot be
# loaded: the new adapter's config has the largest rank of all and no pattern, and its tensors have the ranks of before.
# A merge that was tested in memory, and published or archived, is a file that no model takes, with an error about
# shapes that says nothing of its cause. "cat" and "svd" write what they can load.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from importlib import metadata

import torch
from peft import LoraConfig, PeftModel, get_peft_model

folder = sys.argv[1]
inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.down(self.up(x))


def loaded(way, pattern):
    """Says whether a combination that was saved gives the outputs that it gave, or what loading it raises."""
    options = {"r": 4, "lora_alpha": 4, "target_modules": ["up", "down"], "init_lora_weights": False}
    model = get_peft_model(Block(), LoraConfig(rank_pattern=pattern, **options), adapter_name="one")
    model.add_adapter("two", LoraConfig(rank_pattern=pattern, **options))
    model.add_weighted_adapter(["one", "two"], [0.5, 0.5], "both", combination_type=way)
    model.set_adapter("both")
    before = model(inputs)
    name = f"{folder}/{way}{len(pattern)}"
    model.save_pretrained(name, selected_adapters=["both"])
    try:
        after = PeftModel.from_pretrained(Block(), f"{name}/both")(inputs)
    except RuntimeError as error:
        return str(error).split(":")[0]
    return bool(torch.allclose(before, after, atol=1e-5))


print("peft", metadata.version("peft"), "torch", torch.__version__)
print("guess: an adapter that was combined and saved is loaded as it was")
found = {
    (way, bool(pattern)): loaded(way, pattern) for pattern in ({}, {"down": 8}) for way in ("linear", "cat", "svd")
}
for (way, pattern), result in found.items():
    print(f"{way}, {'a rank pattern' if pattern else 'one rank'}: {result}")
wrong = found.pop(("linear", True))
sys.exit(not (wrong is not True and "load" in wrong and all(value is True for value in found.values())))
PY
