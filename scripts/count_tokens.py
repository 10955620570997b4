"""Count the tokens of the package's own tasks, for the proposer `pc`: models/embedded/frequencies/tasks.json.

    python scripts/count_tokens.py

Counts 500 training problems of each text task with their answers, each followed by an end token.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pardec.tasks import task  # noqa: E402

TABLE = ROOT / "models" / "embedded" / "frequencies" / "tasks.json"
TASKS = (
    "arithmetic",
    "lists",
    "records",
    "insert",
    "remove",
    "shuffle",
    "replace",
    "sort",
    "chains",
    "grids",
    "stories",
)
MODELS = ("tiny-dream", "tiny-llada")
PROBLEMS, END = 500, 3


def count() -> Counter[int]:
    """How often each id occurs."""
    tokenizer = Tokenizer.from_file(str(ROOT / "models" / "embedded" / "tokenizer" / "tokenizer.json"))
    counts = Counter[int]()
    for name in TASKS:
        for problem in task(name).problems("train", PROBLEMS):
            counts.update(tokenizer.encode(f"{problem.prompt} {problem.answer}", add_special_tokens=False).ids)
            counts[END] += 1
    return counts


def main() -> None:
    counts = count()
    content = {
        "models": MODELS,
        "recipe": f"scripts/count_tokens.py: {PROBLEMS} training problems of {', '.join(TASKS)}",
        "num_token": counts.total(),
        "p_baseline_dict": {str(token): counts[token] for token in sorted(counts)},
    }
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
