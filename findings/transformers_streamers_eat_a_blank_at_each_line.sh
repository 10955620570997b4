#!/usr/bin/env bash
# transformers: a streamer gives the text of generate piece by piece, and after each line break decodes the next line
# by itself. The decoders of Llama 2, Mistral and others with SentencePiece's blanks take one off the beginning of a
# text, and so the streamer takes one off each line: code is indented by 3 in place of 4, nested points of a list
# move, and the streamed answer is not the decoded one. With a byte-level decoder, as of Qwen and Llama 3, both are
# equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer

answer = "def f(x):\n    if x:\n        return 1\n\n- a\n  - b"


def texts(tokens, decoder):
    """The answer as decode gives it, and as a streamer gives it token by token."""
    words = Tokenizer(models.WordLevel({token: index for index, token in enumerate(dict.fromkeys(tokens))}, tokens[0]))
    words.decoder = decoder
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    ids = [words.token_to_id(token) for token in tokens]
    streamer = TextIteratorStreamer(tokenizer)
    for token in ids:
        streamer.put(torch.tensor([token]))
    streamer.end()
    return tokenizer.decode(ids), "".join(streamer)


def pieces(blank, line):
    lines = [text.replace(" ", blank) for text in answer.split("\n")]
    return [piece for text in lines for piece in ([text] if text else []) + [line]][:-1]


strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
llama = pieces("▁", "<0x0A>")
seen = {
    "Llama 2's decoder": texts(["▁" + llama[0], *llama[1:]], decoders.Sequence(strip)),
    "byte level": texts(pieces("Ġ", "Ċ"), decoders.ByteLevel()),
}
print("transformers", transformers.__version__)
print("guess: the pieces of a streamer are the decoded text")
for name, (decoded, streamed) in seen.items():
    print(f"seen, {name}: equal {streamed == decoded}, streamed {streamed!r}")
moved = "\n".join(line.removeprefix(" ") for line in answer.split("\n"))
sys.exit(seen != {"Llama 2's decoder": (answer, moved), "byte level": (answer, answer)})
PY
