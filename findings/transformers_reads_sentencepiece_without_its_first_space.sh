#!/usr/bin/env bash
# transformers: a checkpoint with tokenizer.model alone is converted while it is loaded. The file says that a space stands
# before every text (add_dummy_prefix), and sentencepiece, with which the model was trained, puts it there. Only some
# classes do so: with PreTrainedTokenizerFast, and for every model of type mistral, the first word has other ids.
# Nothing warns, and every prompt begins with tokens that training saw inside words alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
"$folder/venv/bin/pip" install -q --disable-pip-version-check sentencepiece==0.2.1 protobuf==7.36.2
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import sentencepiece
import transformers
from transformers import AutoTokenizer

folder, text = Path(sys.argv[1]) / "model", "Hello world"
folder.mkdir()
corpus = ["Hello world, the quick brown fox jumps over the lazy dog.", "def f(x): return x + 1"] * 50
(folder / "corpus.txt").write_text("\n".join(corpus))
sentencepiece.SentencePieceTrainer.train(
    input=str(folder / "corpus.txt"),
    model_prefix=str(folder / "tokenizer"),
    vocab_size=360,
    model_type="bpe",
    byte_fallback=True,
    hard_vocab_limit=False,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    minloglevel=2,
)
for name in ("corpus.txt", "tokenizer.vocab"):
    (folder / name).unlink()
own = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode(text, out_type=str)


def tokens(kind, model_type):
    settings = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder).tokenize(text)


cases = [("LlamaTokenizer", "llama"), ("LlamaTokenizer", "mistral"), ("PreTrainedTokenizerFast", "llama")]
seen = [tokens(*case) for case in cases]
print("transformers", transformers.__version__, "sentencepiece", sentencepiece.__version__)
print("guess: the file holds every rule, so the tokens are those of sentencepiece:", own)
for (kind, model_type), found in zip(cases, seen):
    print(f"seen: {kind}, model_type {model_type}: {found}")
sys.exit(not (seen[0] == own and seen[1] == seen[2] != own and "".join(seen[1]) == "".join(own)[1:]))
PY
