#!/usr/bin/env bash
# transformers: prefill_chunk_size computes a long prompt in parts, to save memory, and leaves the generated tokens as they
# are. With output_hidden_states the first entry has the states of the prompt, one for each token, of which embeddings,
# probes and drafting heads are made. In chunks it has those of the last chunk alone: position 0 of the tensor is no
# longer token 0, a mean over the prompt is one over its end, and how many tokens that is depends on a remainder. It has
# the right number of layers and sizes, and nothing is said. Attentions are cut in the same way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes, **ids)).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(8)
model.set_attn_implementation("eager")
prompt = torch.randint(1, 40, (1, 22))


def outputs(**options):
    return model.generate(
        prompt, do_sample=False, max_new_tokens=4, return_dict_in_generate=True, output_hidden_states=True,
        output_attentions=True, **options
    )  # fmt: skip


whole = outputs()
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: tokens and hidden states are the same in chunks of any size")
seen = []
for size in (22, 11, 10, 7):
    parts = outputs(prefill_chunk_size=size)
    states, attention = parts.hidden_states[0][-1], parts.attentions[0][-1]
    seen.append((torch.equal(parts.sequences, whole.sequences), states.shape[1], attention.shape[-2]))
    last = torch.allclose(states, whole.hidden_states[0][-1][:, -states.shape[1] :], atol=1e-4)
    print(f"chunks of {size}: the same tokens {seen[-1][0]}, states of {states.shape[1]} of 22 tokens, the last {last}")
sys.exit(seen != [(True, 22, 22), (True, 11, 11), (True, 2, 2), (True, 1, 1)])
PY
