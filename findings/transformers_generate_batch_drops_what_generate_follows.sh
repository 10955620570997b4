#!/usr/bin/env bash
# transformers: generate_batch, the continuous batching of the library, takes the GenerationConfig of generate, and
# its greedy tokens are those of generate. Some settings that generate follows are dropped: of a repetition penalty
# the log says so, of min_new_tokens, num_beams and stop strings nothing does. Answers end early, are those without
# beams, or run on past a stop string, in the function that is meant for evaluations and training over many prompts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 psutil==7.2.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import logging
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.generation.configuration_utils import ContinuousBatchingConfig

letters = [chr(ord("a") + index) for index in range(26)]
words = Tokenizer(models.WordLevel(dict(zip(letters, range(26))), unk_token="a"))
words.pre_tokenizer, words.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a")
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
ends = {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
model = LlamaForCausalLM(LlamaConfig(vocab_size=26, initializer_range=0.6, **size, **ends)).eval()
prompt = torch.randint(1, 26, (1, 12))
warned = []


class Warned(logging.Handler):
    def emit(self, record):
        warned.append(record.getMessage())


logger = logging.getLogger("ContinuousBatchingLogger")
logger.addHandler(Warned(logging.WARNING))


def config(**more):
    plain = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    return GenerationConfig(**plain | more)


def single(**more):
    rows = {"attention_mask": torch.ones_like(prompt), "tokenizer": tokenizer}
    return model.generate(prompt, generation_config=config(**more), **rows)[0, prompt.shape[1] :].tolist()


def batched(**more):
    small = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64)
    settings = {"generation_config": config(**more), "continuous_batching_config": small, "progress_bar": False}
    [answer] = model.generate_batch(inputs=prompt.tolist(), **settings).values()
    return answer.generated_tokens


plain = single()
text = "".join(letters[token] for token in plain)
cases = {
    "no setting": {},
    "min_new_tokens": {"min_new_tokens": 20, "eos_token_id": plain[6]},
    "num_beams": {"num_beams": 3},
    "stop_strings": {"stop_strings": [text[8:10]]},
    "repetition_penalty": {"repetition_penalty": 1.5},
}
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: generate_batch gives the tokens of generate, or says which setting it does not follow")
seen = {}
for name, more in cases.items():
    warned.clear()
    asked, got = single(**more), batched(**more)
    said = any("support" in message for message in warned)
    seen[name] = asked == got, said
    print(f"seen, {name}: generate {len(asked)} tokens, generate_batch {len(got)}, equal {asked == got}, said {said}")
silent = dict.fromkeys(["min_new_tokens", "num_beams", "stop_strings"], (False, False))
sys.exit(seen != {"no setting": (True, False), **silent, "repetition_penalty": (False, True)})
PY
