"""Finds the tree of paths and prompt tokens after each node that gains the most for hit rates; prints a spec.

    python scripts/prompt_tree.py tiny-llama-prompts --rates "0.6 0.15 / 0.4 0.1 / 0.3 0.1" --inputs 24
    python scripts/prompt_tree.py FOLDER --rates rates.json --seconds "8:0.021 16:0.024 32:0.035 64:0.061"

Rates are how often the token of rank 0, 1, .. is right after a node of depth 0, 1, ..: of a text, or of a file with
lists of lists. With `--seconds`, times of forwards by their inputs, the number of inputs is chosen, too: the tree of
the most tokens per second. Measure them where the tree is to run: on a processor they grow with every input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pardec.models.errors import SpecError  # noqa: E402
from pardec.samplers.speculative.shape.prompt_trees import fastest_tree, prompt_tree  # noqa: E402


def read_rates(text: str) -> list[list[float]]:
    """Rates from a JSON file, or from ranks separated by spaces and depths by '/'."""
    if text.endswith(".json"):
        return [list(map(float, level)) for level in json.loads(Path(text).read_text())]
    return [list(map(float, level.split())) for level in text.split("/")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", help="the draft module of prompt tokens")
    parser.add_argument("--rates", required=True)
    sizes = parser.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--inputs", type=int, help="most tokens and prompt tokens per round")
    sizes.add_argument("--seconds", help="times of measured forwards, as inputs:seconds")
    options = parser.parse_args(arguments)
    try:
        rates = read_rates(options.rates)
        if options.seconds is None:
            tree = prompt_tree(rates, options.inputs)
        else:
            pairs = (entry.split(":") for entry in options.seconds.split())
            tree = fastest_tree(rates, {int(inputs): float(seconds) for inputs, seconds in pairs})
    except (SpecError, ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    print(tree.spec(options.name, len(rates)))
    print(f"{tree.tokens:.3f} tokens per round expected, {tree.inputs} inputs", file=sys.stderr)


if __name__ == "__main__":
    main()
