#!/usr/bin/env bash
# sacrebleu: a corpus of answers of one to three words, each equal to its reference, has BLEU 0 and not 100, since no
# answer has four words in a row; sentence_bleu of each is 100, and one longer answer, right or half wrong, lifts the
# corpus. The other way round, texts that differ have full marks: BLEU joins a word broken at a line's end and reads
# &lt; as <, chrF leaves out all blanks, and TER the case. A test that two texts score 100 does not say that they are
# equal, for code and markup least of all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check sacrebleu==2.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import sacrebleu

short = ["Paris", "the red cat", "forty two"]
print("sacrebleu", sacrebleu.__version__)
print("guess: answers equal to their references score 100, and others less")
alone = [sacrebleu.sentence_bleu(text, [text]).score for text in short]
corpus = sacrebleu.corpus_bleu(short, [short]).score
longer = sacrebleu.corpus_bleu([*short, "a b c d"], [[*short, "a b c x y"]]).score
print(f"BLEU of {short}, equal to the references: {corpus:.0f}, each alone", *(f"{score:.0f}" for score in alone))
print(f"BLEU with a longer answer that is wrong: {longer:.0f}")
line, markup = "write a non-\nlinear model now", "write &lt;b&gt; in the page"
pairs = {
    "BLEU": [
        sacrebleu.corpus_bleu([line], [["write a nonlinear model now"]]).score,
        sacrebleu.corpus_bleu([markup], [["write <b> in the page"]]).score,
    ],
    "chrF": [sacrebleu.corpus_chrf(["there for e we go"], [["therefore wego"]]).score],
    "errors by TER": [sacrebleu.corpus_ter(["THE CAT"], [["the cat"]]).score],
}
print("texts that differ in a broken word, markup, blanks or case:", pairs)
full = all(score > 99.99 for name in ("BLEU", "chrF") for score in pairs[name]) and pairs["errors by TER"] == [0]
sys.exit(not (all(score > 99.99 for score in alone) and corpus == 0 and 40 < longer < 100 and full))
PY
