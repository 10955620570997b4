"""Answers many prompts and writes one JSON line per answer; started again, it goes on where it stopped.

    python examples/batch_to_file.py --out answers.jsonl
    python examples/batch_to_file.py --out answers.jsonl    # nothing left to do

`serve_batch` decodes `--batch-size` rows at once: a finished row's slot goes to the next prompt. Rows come in the order
in which they finish, each as soon as it does. On the command line `pardec generate MODEL --prompts FILE -o OUT` does
the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pardec


def finished(path: Path) -> set[str]:
    """The ids that the file already has. A line that was cut off by a kill is dropped."""
    if not path.exists():
        return set()
    complete = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(complete))
    return {json.loads(line)["id"] for line in complete}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-dream")
    parser.add_argument("--sampler", default="threshold:tau=0.9+eos")
    parser.add_argument("--out", type=Path, default=Path("answers.jsonl"))
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()

    problem = "Tom has {} cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"
    prompts = {f"cups-{cups}": problem.format(cups) for cups in range(10, 30)}
    skipped = finished(arguments.out)
    todo = [name for name in prompts if name not in skipped]
    print(f"{len(todo)} of {len(prompts)} prompts to do")
    if not todo:
        return

    model = pardec.load(arguments.model)
    # The row's own seed: an answer at a temperature is the same whether or not the run was interrupted.
    requests = ({"prompt": prompts[name], "seed": list(prompts).index(name)} for name in todo)
    with arguments.out.open("a") as file:
        for row in model.serve_batch(requests, batch_size=arguments.batch_size, sampler=arguments.sampler):
            line = {"id": todo[row.index], "text": row.text, "finish": row.finish, "nfe": row.nfe}
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
