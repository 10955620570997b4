#!/usr/bin/env bash
# tokenizers: a byte-level tokenizer has a token for each of the 256 bytes, so that no text is unknown and decoding
# gives it back. Trained by BpeTrainer with the pre-tokenizer ByteLevel, it has tokens for those bytes alone that the
# training text had. Others are left out of a prompt, without an error or an unknown token: digits, a capital, a bracket
# vanish, and "The Fox" is "he ox". initial_alphabet=ByteLevel.alphabet() gives all 256; a vocab_size below that is then
# exceeded without a word. A large training text has nearly all bytes, and hides what it lacks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

corpus = ["the quick brown fox jumps over the lazy dog"] * 20
texts = ["the fox", "The Fox", "7 foxes", "fox(dog)", "na\u00efve"]


def trained(vocab_size, **options):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **options)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


print("tokenizers", tokenizers.__version__)
print("guess: decoding what was encoded gives the text, for every text")
alphabet = pre_tokenizers.ByteLevel.alphabet()
plain, whole = trained(60), trained(300, initial_alphabet=alphabet)
seen = {text: [way.decode(way.encode(text).ids) for way in (plain, whole)] for text in texts}
for text, (without, with_alphabet) in seen.items():
    print(f"seen: {text!r} is {without!r}, and with initial_alphabet {with_alphabet!r}")
size = trained(100, initial_alphabet=alphabet).get_vocab_size()
print(f"seen: with initial_alphabet and vocab_size=100: {size} tokens")
found = [without for without, _ in seen.values()]
right = found == ["the fox", "he ox", " foxes", "foxdog", "nave"]
sys.exit(not (right and all(with_alphabet == text for text, (_, with_alphabet) in seen.items()) and size == 256))
PY
