#!/usr/bin/env bash
# datasets: a stream is split by take(n) and skip(n), after a shuffle, so that the n rows are random ones. set_epoch,
# which trainers call at each epoch, shuffles anew: take and skip then stand for other rows. The part that is trained on
# in the second epoch has rows of the part that was held out in the first, and a few epochs later all of it was trained
# on; validation gets better and nothing is said. In one epoch both parts are disjoint, which is what a test looks at.
# Split before the shuffle, each part stays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset

ROWS, HELD_OUT = 200, 20
stream = Dataset.from_dict({"x": list(range(ROWS))}).to_iterable_dataset(num_shards=4)


def rows(part, epoch):
    part.set_epoch(epoch)
    return {row["x"] for row in part}


def seen(train, validation):
    """How many rows of the first validation set the training of each of eight epochs has seen so far."""
    held_out, trained, counts = rows(validation, 0), set(), []
    for epoch in range(8):
        trained |= rows(train, epoch)
        counts.append(len(held_out & trained))
    return counts


shuffled = stream.shuffle(seed=1, buffer_size=ROWS)
after = seen(shuffled.skip(HELD_OUT), shuffled.take(HELD_OUT))
before = seen(stream.skip(HELD_OUT).shuffle(seed=1, buffer_size=ROWS), stream.take(HELD_OUT))
print("datasets", datasets.__version__)
print(f"guess: none of {HELD_OUT} held-out rows is trained on, in any epoch")
print("split after the shuffle, held-out rows trained on by epoch: ", after)
print("split before the shuffle, held-out rows trained on by epoch:", before)
sys.exit(not (after[0] == 0 and after[1] > HELD_OUT // 2 and after[-1] == HELD_OUT and not any(before)))
PY
