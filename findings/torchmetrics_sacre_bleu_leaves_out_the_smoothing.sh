#!/usr/bin/env bash
# torchmetrics: SacreBLEUScore is described as the BLEU of sacrebleu, whose point is that everybody's scores are the
# same. It has sacrebleu's tokenizers, and not its smoothing: where no four words in a row are right, as in a batch, a
# small set, or a weak model, sacrebleu gives a score that grows as the texts get better, and SacreBLEUScore gives 0.
# Its own argument smooth=True leaves the 0 as it is, and changes scores that need no smoothing. Curves of a training
# that are flat at 0, and numbers that cannot be compared with published ones, carry the right name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check sacrebleu==2.6.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import sacrebleu
import torchmetrics
from torchmetrics.text import SacreBLEUScore

cases = {
    "three words in a row": ("the cat sat over there again", "the cat sat on the mat"),
    "two words in a row": ("the cat ran over there again", "the cat sat on the mat"),
    "all but the last word": ("the cat sat on the rug", "the cat sat on the mat"),
}
print("torchmetrics", torchmetrics.__version__, "sacrebleu", sacrebleu.__version__)
seen = []
for name, (answer, reference) in cases.items():
    score = sacrebleu.corpus_bleu([answer], [[reference]]).score
    ours = [100 * SacreBLEUScore(smooth=smooth)([answer], [[reference]]).item() for smooth in (False, True)]
    seen.append([round(value, 1) for value in (score, *ours)])
    print(f"guess, {name}:", seen[-1][0], "as sacrebleu")
    print(f"seen, {name}:", seen[-1][1], "and with smooth=True", seen[-1][2])
sys.exit(seen != [[30.2, 0.0, 0.0], [16.2, 0.0, 0.0], [76.0, 76.0, 80.3]])
PY
