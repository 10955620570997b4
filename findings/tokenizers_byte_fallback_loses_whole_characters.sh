#!/usr/bin/env bash
# tokenizers: models with byte fallback (Llama 2, Mistral, Gemma) spell rare characters as byte tokens. Where such a run
# ends in a part of a character, as it does at a length limit, decoding replaces all bytes of the run, the complete
# characters before it too. Python and sentencepiece lose only the cut one. A stream that printed the whole characters
# then fails: the text no longer begins with what it printed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3 sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import sys
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream

text = "a€€".encode() + "€".encode()[:2]
pieces = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "a": 257}
tokenizer = Tokenizer(models.BPE(pieces, [], unk_token="<unk>", byte_fallback=True))
tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
ids = [257, *(byte + 1 for byte in text[1:])]
folder = Path(tempfile.mkdtemp())
(folder / "text").write_text("a b c\n" * 20)
sentencepiece.SentencePieceTrainer.train(
    input=str(folder / "text"), model_prefix=str(folder / "model"), vocab_size=263, model_type="bpe",
    byte_fallback=True, minloglevel=2, hard_vocab_limit=False,
)  # fmt: skip
other = sentencepiece.SentencePieceProcessor(model_file=str(folder / "model.model"))
theirs = other.decode([other.piece_to_id("a"), *(other.piece_to_id(f"<0x{byte:02X}>") for byte in text[1:])])


def streamed(ids):
    stream, parts = DecodeStream(skip_special_tokens=True), []
    for token in ids:
        try:
            parts.append(stream.step(tokenizer, token) or "")
        except Exception as error:
            return "".join(parts), str(error).split(".")[0]
    return "".join(parts), None


print("tokenizers", tokenizers.__version__, "sentencepiece", sentencepiece.__version__)
print("guess: the text is", repr(text.decode(errors="replace")), "as in Python, which replaces the cut character alone")
print("sentencepiece:", repr(theirs))
decoded = tokenizer.decode(ids)
print("tokenizers:", repr(decoded))
printed, _ = streamed(ids)
_, error = streamed([*ids, 257])
print("tokenizers, streamed:", repr(printed), "and, with one more letter:", error)
right = theirs.startswith("a€€") and printed.startswith("a€€") and error is not None
sys.exit(not (right and decoded == "a" + "\ufffd" * (len(text) - 1)))
PY
