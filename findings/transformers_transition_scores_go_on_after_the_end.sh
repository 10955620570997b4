#!/usr/bin/env bash
# transformers: compute_transition_scores gives the log-probability of each generated token. In a batch, a row that
# has ended is filled with the pad token, and its scores go on: they are those of the pad token, which the model never
# chose. Summed or averaged over a row, as for perplexity, reranking or the best of several answers, a short answer
# counts as far less likely than it is, by the length of the longest answer of its batch. Alone, the same row has the
# right sum.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
ends = {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.6, **size, **ends)).eval()
prompts = torch.randint(1, 64, (2, 8))
plain = {"do_sample": False, "max_new_tokens": 16}


def scored(rows, end):
    more = {"output_scores": True, "return_dict_in_generate": True, "eos_token_id": end}
    out = model.generate(rows, attention_mask=torch.ones_like(rows), **plain, **more)
    return out.sequences[:, 8:], model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)


texts = model.generate(prompts, attention_mask=torch.ones_like(prompts), **plain)[:, 8:].tolist()
end = next(token for token in texts[0][2:8] if token not in texts[1] and texts[0].index(token) > 1)
length = texts[0].index(end) + 1
tokens, scores = scored(prompts, end)
_, alone = scored(prompts[:1], end)
after = scores[0, length:]
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: the scores after the end of a row are 0, so that a row's sum is its log-probability")
print(f"seen: tokens of a row of {length}: {tokens[0].tolist()}")
print("seen: its scores:", [round(score, 2) for score in scores[0].tolist()])
print(f"seen: their sum {float(scores[0].sum()):.2f}, and {float(alone.sum()):.2f} for the same row alone")
same = torch.allclose(scores[0, :length], alone[0], atol=1e-4)
sys.exit(not (same and (tokens[0, length:] == 0).all() and (after < -1).all()))
PY
