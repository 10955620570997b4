#!/usr/bin/env bash
# sentencepiece: enable_sampling cuts a text into other pieces at each call, as a regularization of training, and alpha
# says how much. In a unigram model a larger alpha gives the best pieces more often: 1 is close to no sampling. In a BPE
# model alpha is the probability that a merge is left out: 0 is no sampling, and 1 cuts every word into letters. A
# recipe carried over from one type of model to the other turns a mild setting into the strongest, without an error,
# and texts of training become several times as long.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import io
import random
import sys

import sentencepiece

random.seed(0)
words = "the cat sat on a mat with other weather and there was more to say of it then".split()
lines = [" ".join(random.choices(words, k=8)) for _ in range(300)]
text = " ".join(words)


def lengths(model_type):
    """Pieces of the text: without sampling, and on average over 50 samples with alpha 0.02, 0.5 and 1."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=file, model_type=model_type, vocab_size=60, minloglevel=2,
        hard_vocab_limit=False,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    counts = [len(model.encode(text))]
    for alpha in (0.02, 0.5, 1.0):
        samples = (model.encode(text, enable_sampling=True, alpha=alpha, nbest_size=-1) for _ in range(50))
        counts.append(sum(map(len, samples)) / 50)
    return counts


print("sentencepiece", sentencepiece.__version__)
print("guess: alpha has one meaning, so that 1 samples more than 0.02, or less, in both types of model")
seen = {}
for model_type in ("unigram", "bpe"):
    none, *sampled = seen[model_type] = lengths(model_type)
    print(f"{model_type}: {none} pieces; sampled with alpha 0.02, 0.5 and 1:", *(f"{count:.1f}" for count in sampled))
(none, low, _, high), (bpe_none, bpe_low, _, bpe_high) = seen["unigram"], seen["bpe"]
letters = len(text) + 1
sys.exit(not (low > 1.5 * none > 1.4 * high and bpe_low < 1.2 * bpe_none and bpe_high == letters))
PY
