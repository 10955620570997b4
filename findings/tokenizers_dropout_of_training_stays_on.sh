#!/usr/bin/env bash
# tokenizers: dropout of a BPE model leaves out merges at random, so that training sees each word in several cuts. It is
# a part of the model, and there is no mode for inference: saved with the tokenizer, it goes on after loading, in the
# library and through transformers. One prompt has other tokens, and another number of them, at each call; a cache of
# prefixes is never hit, likelihoods change from run to run, and greedy decoding is not repeatable, with all seeds set.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder/saved" <<'PY'
import sys

import tokenizers
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

text = "the weather of the other cities is rather the same"


def cuts(dropout):
    trained = Tokenizer(models.BPE(dropout=dropout))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    trained.train_from_iterator([text] * 10, trainers.BpeTrainer(vocab_size=60, show_progress=False))
    PreTrainedTokenizerFast(tokenizer_object=trained).save_pretrained(sys.argv[1])
    transformers.set_seed(0)
    library, auto = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json"), AutoTokenizer.from_pretrained(sys.argv[1])
    calls = range(20)
    return len({tuple(library.encode(text).ids) for _ in calls}), len({tuple(auto(text).input_ids) for _ in calls})


print("tokenizers", tokenizers.__version__, "transformers", transformers.__version__)
print("guess: a tokenizer that was loaded for inference encodes a text in one way")
seen = {dropout: cuts(dropout) for dropout in (None, 0.3)}
for dropout, (library, auto) in seen.items():
    print(
        f"seen: trained with dropout {dropout}: of 20 calls, {library} encodings by tokenizers, {auto} by transformers"
    )
sys.exit(seen[None] != (1, 1) or min(seen[0.3]) < 5)
PY
