"""Times the first token of requests that share a few-shot prompt, with and without the prefix cache.

    python benchmarks/prefix_reuse.py [--model tiny-llama ...] [--tokens 1000] [--new 32] [--repeats 5] [--out NAME]

Each repeat starts with an empty cache and asks two questions after the same examples, then continues from the second
answer, as a chat does; the same three requests follow without the cache. The examples are cut to `--tokens`, or to what
the model has positions for. Tokens of both are compared. Seconds are process time of one thread, which other load on
the machine changes little; figures are medians, and the ratio is that of each repeat's first and second request.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

import pardec
from pardec.environment import processor

HERE = Path(__file__).resolve().parent
MIB = 1024
PAGE = """# Time to the first token after a shared few-shot prompt

`{command}`

Weights and K/V in float32 unless the file has fewer bits, one thread of {processor}, torch {torch}. Three requests
follow each other: two questions after the same examples, and one that goes on from the second answer. `first` fills an
empty prefix cache; `second` and `chat` reuse it; the columns `off` are the same requests without a cache. Milliseconds
of process time to the first token are medians of {repeats} repeats, `first / second` is the median (least to greatest)
of the repeats' own ratios. Tokens were the same with and without in every request.

| model | examples | first | second | off | chat | off | reused by second | by chat | first / second | KiB a token |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def examples(model: pardec.Model, count: int) -> list[int]:
    """Token ids of solved problems, `count` of them."""
    problems = pardec.task("arithmetic").problems("train", count // 10 + 8, 7)
    text = "\n".join(f"{problem.prompt} {problem.answer}" for problem in problems)
    ids: list[int] = model.tokenizer(text)["input_ids"]
    assert len(ids) >= count, "there are enough problems"
    return ids[:count]


@dataclass(frozen=True)
class Timed:
    """The result of one request."""

    first: float  # seconds to the first token
    tokens: list[int]
    reused: int


def request(model: pardec.Model, ids: list[int], new: int) -> Timed:
    """Runs one request, and measures the time to its first token."""
    first, last = 0.0, None
    start = time.process_time()
    for event in model.stream(input_ids=[ids], sampler="sequential", max_new_tokens=new, stop_ids=[]):
        if isinstance(event, pardec.Step) and not first:
            first = time.process_time() - start
        last = event
    assert isinstance(last, pardec.Finished), "a loop ends with Finished"
    return Timed(first, last.tokens[0, len(ids) :].tolist(), last.reused[0])


def requests(model: pardec.Model, shared: list[int], new: int) -> list[Timed]:
    """Two questions after the same examples, then a continuation of the second answer."""
    questions = [model.tokenizer(f"\n{each.prompt}")["input_ids"] for each in
                 pardec.task("arithmetic").problems("heldout", 2, 7)]  # fmt: skip
    first, second = (request(model, [*shared, *question], new) for question in questions)
    chat = request(model, [*shared, *questions[1], *second.tokens, *questions[0]], new)
    return [first, second, chat]


def repeat(model: pardec.Model, shared: list[int], new: int) -> tuple[list[Timed], list[Timed], float]:
    """Runs the requests with an empty cache and without one; also returns the cache's KiB per token."""
    cache = model.cache_prefixes(MIB)
    assert cache is not None, "it has room"
    own = requests(model, shared, new)
    kib = cache.nbytes / (cache.blocks * cache.block) / 2**10
    model.cache_prefixes(0)
    off = requests(model, shared, new)
    assert [each.tokens for each in own] == [each.tokens for each in off], "tokens differ with the cache"
    return own, off, kib


def line(name: str, shared: int, repeats: list[tuple[list[Timed], list[Timed], float]]) -> str:
    """A line of the table."""

    def median(each: Iterable[float]) -> str:
        return f"{1000 * statistics.median(each):.1f}"

    (_, second, chat), _, kib = repeats[-1]
    ratios = sorted(own[0].first / own[1].first for own, _, _ in repeats)
    columns = [
        name,
        str(shared),
        median(own[0].first for own, _, _ in repeats),
        median(own[1].first for own, _, _ in repeats),
        median(off[1].first for _, off, _ in repeats),
        median(own[2].first for own, _, _ in repeats),
        median(off[2].first for _, off, _ in repeats),
        str(second.reused),
        str(chat.reused),
        f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})",
        f"{kib:.1f}",
    ]
    return f"| {' | '.join(columns)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", nargs="*", default=["tiny-llama"])
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of the shared examples")
    parser.add_argument("--new", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "prefix_reuse", help="path without suffix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = ["python", "benchmarks/prefix_reuse.py", *(Path(each).name for each in sys.argv[1:])]
    page = PAGE.format(
        command=" ".join(command), processor=processor(), torch=torch.__version__, repeats=options.repeats
    )
    for name in options.model:
        model = pardec.load(name, device="cpu")
        room = (model.language_model.max_positions or options.tokens + 200) - 2 * options.new - 120
        shared = examples(model, min(options.tokens, room))
        repeat(model, shared[:64], 2)  # warms up
        repeats = [repeat(model, shared, options.new) for _ in range(options.repeats)]
        page += line(model.name, len(shared), repeats)
        print(page.splitlines()[-1], flush=True)
    options.out.with_suffix(".md").write_text(page)


if __name__ == "__main__":
    main()
