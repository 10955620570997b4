#!/usr/bin/env bash
# tokenizers: a model is made with its settings, Unigram(byte_fallback=True), WordPiece(continuing_subword_prefix="@@"),
# and trained. Training keeps some of them (dropout, unk_token, fuse_unk, a word's longest length) and sets others back
# to the trainer's: a Unigram model has no byte fallback any more, for which the trainer has no argument, so that every
# unknown character is <unk> and its bytes, which were given as special tokens, are never used. WordPiece goes on with
# "##", and BPE without a suffix, unless the trainer is told them too. Nothing is said, and the settings are as they
# were given until the training.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import json
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

words = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog"] * 20
bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
unknown = [("<unk>", 0.0)]
cases = {
    "Unigram": (
        models.Unigram(unknown, unk_id=0, byte_fallback=True),
        trainers.UnigramTrainer(
            vocab_size=300, unk_token="<unk>", special_tokens=["<unk>", *bytes_], show_progress=False
        ),
        ["byte_fallback"],
    ),
    "WordPiece": (
        models.WordPiece(unk_token="[UNK]", continuing_subword_prefix="@@", max_input_chars_per_word=50),
        trainers.WordPieceTrainer(vocab_size=60, special_tokens=["[UNK]"], show_progress=False),
        ["continuing_subword_prefix", "max_input_chars_per_word"],
    ),
    "BPE": (
        models.BPE(unk_token="<unk>", fuse_unk=True, end_of_word_suffix="</w>"),
        trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False),
        ["end_of_word_suffix", "fuse_unk"],
    ),
}
seen = {}
print("tokenizers", tokenizers.__version__)
print("guess: training replaces the vocabulary and keeps what the model was made with")
for name, (model, trainer, settings) in cases.items():
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for when in ("before", "after"):
        if when == "after":
            tokenizer.train_from_iterator(words, trainer)
        values = json.loads(tokenizer.to_str())["model"]
        seen[name, when] = [values[setting] for setting in settings]
        print(f"seen: {name} {when} training:", dict(zip(settings, seen[name, when])))
    if name == "Unigram":
        ids = tokenizer.encode("é").ids
        known = all(tokenizer.token_to_id(byte) is not None for byte in ("<0xC3>", "<0xA9>"))
        print("seen: Unigram: 'é' has the ids", ids, "of <unk>, and its bytes are in the vocabulary:", known)
changed = [seen[name, "after"] != seen[name, "before"] for name in cases]
expected = [[False], ["##", 50], [None, True]]
sys.exit(not (all(changed) and [seen[name, "after"] for name in cases] == expected and known and ids == [0]))
PY
