#!/usr/bin/env bash
# tokenizers: many models have more logits than their tokenizer has tokens, and may generate an id in between. Decoding
# it gives nothing, without an error: a text is short of what was generated, and tokens that were sampled and paid for,
# or a mistake in a vocabulary's size, do not show. tiktoken and sentencepiece raise an error for the same id. The same
# id as part of a stream gives None, which also means that a character is not complete yet.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3 tiktoken==0.14.0 sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
ranks = {bytes([byte]): byte for byte in range(256)}
byte_pairs = tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=ranks, special_tokens={})
folder = Path(tempfile.mkdtemp())
(folder / "text").write_text("a b c\n" * 20)
sentencepiece.SentencePieceTrainer.train(
    input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=7, minloglevel=2, hard_vocab_limit=False
)
pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))
ends = {"tokenizers": words.get_vocab_size(), "tiktoken": byte_pairs.n_vocab, "sentencepiece": pieces.get_piece_size()}
decode = {"tokenizers": words.decode, "tiktoken": byte_pairs.decode, "sentencepiece": pieces.decode}
known = {"tokenizers": words.encode("a").ids[0], "tiktoken": ord("a"), "sentencepiece": pieces.piece_to_id("a")}


def decoded(name):
    try:
        return repr(decode[name]([known[name], ends[name] + 9, known[name]]))
    except Exception as error:
        return type(error).__name__


print(*(f"{name} {metadata.version(name)}" for name in ends))
print("guess: an id past the end of the vocabulary is an error, or shows in the text")
seen = {name: decoded(name) for name in ends}
for name, text in seen.items():
    print(f"{name}: a token, the unknown id, the token: {text}")
stream = DecodeStream(skip_special_tokens=True)
steps = [stream.step(words, token) for token in (known["tokenizers"], ends["tokenizers"] + 9)]
print("tokenizers, as a stream:", steps)
right = seen["tokenizers"] == "'aa'" and all("Error" in text for name, text in seen.items() if name != "tokenizers")
sys.exit(not (right and steps == ["a", None]))
PY
