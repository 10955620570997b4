"""Print requests for short stories, one JSON line each, for `pardec generate --prompts`.

    python scripts/story_prompts.py 20000 > prompts.jsonl
    pardec generate "$(./scripts/get_smollm2)" --prompts prompts.jsonl -o stories.jsonl --dtype bfloat16 \\
        --batch-size 96 -n 110 --temperature 0.7 --top-p 0.95 --repetition-penalty 1.05

Each request names who and what the story is about, as in TinyStories (arXiv:2305.07759), so that stories differ; the
words are few and simple. `pardec generate` goes on where the file of stories ends. With `--held-out stories.jsonl`,
instructions that train_stories.py leaves out are printed instead, as benchmarks/masked_answers.py reads them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from text_training import stories

SEED = 0
BOYS, GIRLS = ("Tom", "Ben", "Max", "Sam", "Leo", "Tim"), ("Lily", "Anna", "Mia", "Sue", "Amy", "Kate")
ANIMALS = ("dog", "cat", "bird", "rabbit", "bear", "fox", "frog", "duck", "horse", "mouse")
THINGS = (
    "a red ball", "a big cake", "a blue car", "a small boat", "a new hat", "an old book", "a toy", "a kite", "an apple",
    "a box", "a bike", "a lost key", "a flower", "a drum", "a warm coat",
)  # fmt: skip
PLACES = (
    "a garden", "a park", "the forest", "the sea", "a farm", "a school", "the river", "a hill", "the kitchen",
    "the snow", "the rain", "the moon", "a tall tree", "a friend", "a birthday",
)  # fmt: skip
MOODS = ("happy", "sad", "funny", "brave", "kind")
REQUEST = "Write a very short story for a small child. Use only simple words. It is a {mood} story about {about}."


def subject(rng: random.Random) -> str:
    """Who and what a story is about."""
    who = rng.choice(
        (f"a boy named {rng.choice(BOYS)}", f"a girl named {rng.choice(GIRLS)}", f"a {rng.choice(ANIMALS)}")
    )
    what = rng.choice((rng.choice(THINGS), rng.choice(PLACES), f"a {rng.choice(ANIMALS)}"))
    return f"{who} and {what}"


def request(number: int) -> dict[str, object]:
    """The request of that number, always the same."""
    rng = random.Random(f"{SEED}/{number}")
    about, mood = subject(rng), rng.choice(MOODS)
    content = REQUEST.format(mood=mood, about=about)
    return {"prompt": content, "id": number}


def held_out(count: int, files: list[Path]) -> Iterator[dict[str, object]]:
    """Instructions that training leaves out: requests, and instructions about their stories in turn."""
    rows = [row for row in stories.read(files) if stories.is_held_out(row)]
    rng = random.Random(SEED)
    for number, row in enumerate(rows[:count]):
        prompt, answer = stories.about(rng, row) if number % 2 else row
        yield {"turns": [prompt], "answer": answer}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", type=int, help="lines at most")
    parser.add_argument("--held-out", type=Path, nargs="+", help="files of stories: print the held-out instructions")
    given = parser.parse_args(argv)
    lines = held_out(given.count, given.held_out) if given.held_out else map(request, range(given.count))
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
