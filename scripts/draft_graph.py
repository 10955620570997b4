"""Makes the graph of states that `freedave:graph=` drafts, from a sampler's commits on some problems of a task.

    python scripts/draft_graph.py tiny-llada --task arithmetic --problems 32 --drafts 6
    python scripts/draft_graph.py tiny-dream --task lists -s threshold:tau=0.9 --drafts 10 --own > graph.txt

The graph goes to standard output, and the counts of the most frequent states to standard error. States are counted on
the first problems of the task, so a comparison should use other problems (`pardec compare --seed`).
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pardec  # noqa: E402
from pardec.models.errors import PardecError, SpecError  # noqa: E402
from pardec.samplers import registry  # noqa: E402
from pardec.samplers.masked.branch.draft_sets import (  # noqa: E402
    StepCounts,
    draft_graph,
    text_of,
)
from pardec.samplers.masked.contracts import MaskedSampler  # noqa: E402


def counted(model: pardec.Model, prompts: list[str], spec: str, *, tokens: int, batch: int) -> StepCounts:
    """Counts the states that the sampler reaches on these prompts, in batches."""
    sampler, counts = registry.resolve(spec, "masked"), StepCounts()
    assert isinstance(sampler, MaskedSampler), "asked for by name"
    if sampler.branch is not None:
        raise SpecError(f"{spec} has drafts already", hint="name the sampler without them")
    for start in range(0, len(prompts), batch):
        some = prompts[start : start + batch]
        model.generate(some, sampler=replace(sampler, branch=counts), max_new_tokens=tokens)
        counts.forget()
    return counts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--task", required=True, help="task whose prompts are decoded")
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("-s", "--sampler", default="sequential", help="sampler that freedave is combined with")
    parser.add_argument("--drafts", type=int, default=6, help="nodes of the graph")
    parser.add_argument("--own", action="store_true", help="count only a node's own states, not those before it")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args(arguments)
    try:
        model = pardec.load(options.model)
        prompts = [problem.prompt for problem in pardec.task(options.task).problems(n=options.problems)]
        counts = counted(model, prompts, options.sampler, tokens=options.tokens, batch=options.batch).counts
        print(draft_graph(counts, options.drafts, parents=not options.own))
    except PardecError as error:
        raise SystemExit(f"error: {error}") from None
    for (steps, commits), count in counts.most_common(10):
        print(f"{count} times after {steps} steps: {text_of([(tuple(sorted(commits)),)])}", file=sys.stderr)


if __name__ == "__main__":
    main()
