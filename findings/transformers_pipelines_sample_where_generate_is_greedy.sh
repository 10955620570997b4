#!/usr/bin/env bash
# transformers: a model without sampling settings decodes greedily in generate. pipeline("text-generation") of the same
# model samples, at a temperature of 0.7: it has settings of its own for what the model leaves open, which it shows
# nowhere. An answer that was checked by generate is another one at each call of the pipeline, and an evaluation through
# a pipeline measures samples. do_sample=False gives generate's text again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
import warnings

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, pipeline

warnings.simplefilter("ignore")
torch.manual_seed(0)
by_word = Tokenizer(models.WordLevel({f"w{number}": number for number in range(50)}, unk_token="w0"))
by_word.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=by_word, pad_token="w0", eos_token="w1")
size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=50, pad_token_id=0, eos_token_id=None, **size)).eval()
prompt = tokenizer("w5 w6 w7", return_tensors="pt")
in_pipeline = pipeline("text-generation", model=model, tokenizer=tokenizer)


def by_generate():
    ids = model.generate(prompt.input_ids, attention_mask=prompt.attention_mask, max_new_tokens=8)
    return tokenizer.decode(ids[0, 3:])


def by_pipeline(**options):
    return in_pipeline("w5 w6 w7", max_new_tokens=8, return_full_text=False, **options)[0]["generated_text"].strip()


print("transformers", transformers.__version__, "torch", torch.__version__)
print("settings of the model:", model.generation_config.to_diff_dict())
print("guess: generate and the pipeline give one text")
greedy = {by_generate() for _ in range(8)}
sampled, asked = {by_pipeline() for _ in range(8)}, {by_pipeline(do_sample=False) for _ in range(8)}
print(f"seen: texts of 8 calls: generate {len(greedy)}, pipeline {len(sampled)}, with do_sample=False {len(asked)}")
sys.exit(not (len(greedy) == 1 and asked == greedy and len(sampled) > 2))
PY
