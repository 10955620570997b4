"""Print the texts that `scripts/gpu_queue` wrote as rows of `pardec generate -o`, for train_stories.py.

python scripts/text_rows.py benchmarks/gpu/state "$(./scripts/get_smollm2)" > texts.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from gpu_runs.texts import Texts  # noqa: E402

import pardec  # noqa: E402

BEFORE, AFTER = "<|im_start|>user\n", "<|im_end|>"  # around the user's message in SmolLM2's template


def rows(texts: Texts, tokenizer: Any) -> Iterator[dict[str, str]]:
    """The user's message and the answer of each text."""
    for start, prompt, length in zip(texts.starts(), texts.prompts, texts.lengths, strict=True):
        opening = tokenizer.decode(texts.ids[start : start + prompt].tolist())
        answer = tokenizer.decode(texts.ids[start + prompt : start + length].tolist(), skip_special_tokens=True)
        yield {"prompt": opening.split(BEFORE)[-1].split(AFTER)[0], "text": answer}


if __name__ == "__main__":
    found = Texts.load(Path(sys.argv[1]))
    if found is None:
        sys.exit(f"error: {sys.argv[1]} holds no texts-1.bin")
    for row in rows(found, pardec.load(sys.argv[2], device="cpu").tokenizer):
        print(json.dumps(row))
