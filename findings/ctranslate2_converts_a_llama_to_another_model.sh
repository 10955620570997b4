#!/usr/bin/env bash
# ctranslate2: its converter of Llama raises for a rotary scaling that it cannot do. The scaling of Llama 3.1 and later
# is among those that it names, and is converted without its factor, which means none: each such model runs with
# unscaled positions, nearly right at first and ever less so. A head_dim that is not hidden_size over heads, and a
# hidden_act other than silu, are not looked at either. All of it converts, loads and writes text, and nothing is said.
# Linear scaling is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 ctranslate2==4.8.5
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
import warnings

import ctranslate2
import numpy
import torch
import transformers
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

warnings.simplefilter("ignore")
transformers.utils.logging.disable_progress_bar()
words = [f"w{number}" for number in range(50)]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w0"))
special = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2"}
size = {"vocab_size": 50, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
ids = list(range(5, 45))


def apart(case, **options):
    """The largest difference of a logit between the two libraries."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=64, initializer_range=0.3, max_position_embeddings=131072, **size, **options)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(f"{sys.argv[1]}/{case}")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(f"{sys.argv[1]}/{case}")
    TransformersConverter(f"{sys.argv[1]}/{case}").convert(f"{sys.argv[1]}/{case}_converted")
    converted = ctranslate2.Generator(f"{sys.argv[1]}/{case}_converted", device="cpu")
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits.numpy()
    return float(abs(numpy.array(converted.forward_batch([[words[token] for token in ids]])) - logits).max())


of_llama = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
cases = {
    "plain": {},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}},
    "llama3": {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, **of_llama}},
    "head_dim": {"head_dim": 32},
    "hidden_act": {"hidden_act": "gelu"},
}
print("ctranslate2", ctranslate2.__version__, "transformers", transformers.__version__)
print("guess: logits are those of transformers, up to rounding, or the converter raises an error")
seen = {case: apart(case, **options) for case, options in cases.items()}
for case, difference in seen.items():
    print(f"seen: {case} {cases[case].get(case, '')}: largest difference {difference:.1e}")
sys.exit([difference > 0.05 for difference in seen.values()] != [False, False, True, True, True])
PY
