#!/usr/bin/env bash
# lighteval: chrf, chrf++ and ter are metrics of a corpus of translations, which its tasks report beside BLEU. They are
# computed from the first translation alone: references are handed to sacrebleu one list per sample, where it expects
# one list per set of references, so that the first answer is compared with the references of all samples, as if they
# were its own, and no other answer is looked at. A model whose first sentence is right has chrF 100 and TER 0, the
# order of the samples moves the score, and no error or warning says so. BLEU is right, and so is a corpus of one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 datasets==5.2.0 nltk==3.9.1
"$folder/venv/bin/pip" install -q --disable-pip-version-check scikit-learn==1.9.1 sacrebleu==2.6.0 pytablewriter==1.2.1
"$folder/venv/bin/pip" install -q --disable-pip-version-check latex2sympy2_extended==1.0.6 sentencepiece==0.2.3 requests==2.34.2
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps lighteval==0.13.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import logging
import sys
from importlib import metadata

logging.disable(logging.CRITICAL)

import sacrebleu
from lighteval.metrics.metrics_corpus import CorpusLevelTranslationMetric
from lighteval.metrics.sample_preparator import GenerativePreparator
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

pairs = [
    ("the cat sat on the mat", "the cat sat on the mat"), ("it rains in Paris today", "no idea at all"),
    ("we went home late", "something else"), ("the shop was closed", "a wrong sentence"),
]  # fmt: skip
answers, references = [answer for _, answer in pairs], [[reference for reference, _ in pairs]]


def score(metric, rows):
    inputs = [
        GenerativePreparator.prepare(Doc(query="", choices=[reference], gold_index=0), ModelResponse(text=[answer]))
        for reference, answer in rows
    ]
    return CorpusLevelTranslationMetric(metric).compute_corpus(inputs)


right = {
    "chrf": sacrebleu.CHRF(), "chrf++": sacrebleu.CHRF(word_order=2), "ter": sacrebleu.TER(),
}  # fmt: skip
print("lighteval", metadata.version("lighteval"), "sacrebleu", metadata.version("sacrebleu"))
print("guess: the scores of sacrebleu, for one right and three wrong translations, in any order")
seen = {}
for name, metric in right.items():
    seen[name] = score(name, pairs), score(name, pairs[::-1]), score(name, pairs[:1])
    expected = metric.corpus_score(answers, references).score
    print(f"{name}: sacrebleu {expected:.1f}, lighteval {seen[name][0]:.1f}, in reverse order {seen[name][1]:.1f}")
first = all(seen[name][0] == seen[name][2] for name in seen)
moved = all(abs(seen[name][0] - seen[name][1]) > 50 for name in seen)
wrong = seen["chrf"][0] > 99.9 and seen["ter"][0] == 0 and right["chrf"].corpus_score(answers, references).score < 60
sys.exit(not (first and moved and wrong))
PY
