#!/usr/bin/env bash
# transformers: a watermark makes a secret part of the vocabulary likelier at each token, by a bias on the logits, and a
# detector finds it in the text. The bias is added last, after top_k has removed its tokens: it chooses among what is
# left. top_k=1, which one takes for greedy decoding, leaves one token and no watermark at all, where greedy decoding has
# the strongest; top_k=3 leaves one that is too weak to be found. A text that was made with watermarking_config and a
# small top_k is taken for one of a person, and nothing is said. Temperature and a top_p of 0.2 do not do this here.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, WatermarkDetector, WatermarkingConfig

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes, **ids)).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(8)
mark = WatermarkingConfig(bias=4.0)
detector = WatermarkDetector(model_config=model.config, device="cpu", watermarking_config=mark)
prompts = torch.randint(1, 256, (4, 8))


def score(**options):
    """The lowest z-score of four texts; above 3 a text is taken for a marked one."""
    texts = model.generate(prompts, watermarking_config=mark, max_new_tokens=60, **options)
    return float(min(detector(texts, return_dict=True).z_score))


seen = {
    "greedy": score(do_sample=False),
    "top_k=1": score(do_sample=True, top_k=1),
    "top_k=3": score(do_sample=True, top_k=3),
    "top_p=0.2": score(do_sample=True, top_k=0, top_p=0.2),
    "no filter": score(do_sample=True, top_k=0),
    "no filter, temperature 3": score(do_sample=True, top_k=0, temperature=3.0),
}
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: the mark is found in each text, and as well with top_k=1 as in greedy decoding")
for name, number in seen.items():
    print(f"{name}: lowest score {number:.1f}, {'found' if number > 3 else 'not found'}")
sys.exit([number > 3 for number in seen.values()] != [True, False, False, True, True, True])
PY
