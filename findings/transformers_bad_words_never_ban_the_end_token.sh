#!/usr/bin/env bash
# transformers: bad_words_ids bans tokens and sequences of them, but not the end token: an entry that is the end token
# alone is taken off the list, and nothing is said. A list of all special tokens, so that a text has none, or of the end
# token, so that it does not end early, seems to be followed. suppress_tokens with the same id does ban it.
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
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, pad_token_id=0, initializer_range=0.4, **size)).eval()
ids = torch.tensor([[5, 6, 7]])


def text(**more):
    return model.generate(ids, max_new_tokens=12, do_sample=False, **more)[0, ids.shape[1] :].tolist()


plain = text(eos_token_id=None)
end = next(token for at, token in enumerate(plain) if at > 3 and plain.index(token) == at)
other = plain[0]
seen = {
    "no list": text(eos_token_id=end),
    "bad_words_ids": text(eos_token_id=end, bad_words_ids=[[end], [other]]),
    "suppress_tokens": text(eos_token_id=end, suppress_tokens=[end, other]),
}
same = text(eos_token_id=end, suppress_tokens=[other])
print("transformers", transformers.__version__, "torch", torch.__version__)
print(f"guess: neither {end}, the end token, nor {other} is generated when both are banned, by either argument")
for name, tokens in seen.items():
    print(f"{name}: {tokens}")
print(f"suppress_tokens of {other} alone: {same}")
listed, banned = seen["bad_words_ids"], seen["suppress_tokens"]
right = seen["no list"][-1] == end and end not in banned and other not in listed + banned and len(banned) == 12
sys.exit(not (right and listed == same and listed[-1] == end))
PY
