#!/usr/bin/env bash
# transformers: the cache that generate returns may be given to the next call, so that a chat's earlier turns need not
# be computed again, and drafts (prompt lookup, an assistant) leave greedy tokens as they are. With both, the text is
# another one: the first round computes the whole text again and adds it after what the cache holds, so that the model
# sees the chat twice. Nothing is said; the first answer of a chat is right and the later ones are not, with more
# computed rather than less.
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
model = LlamaForCausalLM(LlamaConfig(vocab_size=26, initializer_range=0.6, **size, **ends)).eval()
small = LlamaForCausalLM(LlamaConfig(vocab_size=26, **size | {"num_hidden_layers": 1}, **ends)).eval()
small.generation_config.num_assistant_tokens = 3
lookup, assistant = {"prompt_lookup_num_tokens": 3}, {"assistant_model": small}


def run(rows, **more):
    return model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=False, max_new_tokens=12, **more)


chats, seen = 5, {}
for chat in range(chats):
    first, question = torch.randint(1, 26, (1, 12)), torch.randint(1, 26, (1, 3))

    def kept():
        return run(first, return_dict_in_generate=True).past_key_values

    both = torch.cat([run(first), question], 1)
    answer = run(both)
    answers = {
        "cache kept": run(both, past_key_values=kept()),
        "prompt lookup": run(both, **lookup),
        "an assistant": run(both, **assistant),
        "cache kept and prompt lookup": run(both, past_key_values=kept(), **lookup),
        "cache kept and an assistant": run(both, past_key_values=kept(), **assistant),
    }
    for name, text in answers.items():
        seen[name] = seen.get(name, 0) + torch.equal(text, answer)
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: the second answer of a chat has the same tokens, whether the cache is kept, drafts are used, or both")
for name, equal in seen.items():
    print(f"seen, {name}: {equal} of {chats} answers have the tokens of a fresh call")
sys.exit(not ([*seen.values()][:3] == [chats] * 3 and max([*seen.values()][3:]) < 2))
PY
