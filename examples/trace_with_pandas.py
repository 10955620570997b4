"""Reads the decode order of a batch with pandas.

    pip install -e ".[pandas]"
    python examples/trace_with_pandas.py

A result's trace says which forward committed each position, and with what score. Here it becomes a data frame with one
line per generated token; the script prints how many tokens each forward committed, their mean score, and whether the
model decodes from left to right.
"""

from __future__ import annotations

import pandas as pd

import pardec


def frame(result: pardec.Result) -> pd.DataFrame:
    """One line per token that a forward committed."""
    return pd.DataFrame(
        {"row": row, "forward": forward, "position": position, "token": token, "score": score}
        for row, steps in enumerate(result.trace.steps)
        for forward, step in enumerate(steps)
        for position, token, score in zip(step.positions, step.tokens, step.scores, strict=True)
    )


def main() -> None:
    model = pardec.load("tiny-dream")
    problems = pardec.task("records").problems(split="heldout", n=4, seed=7)
    result = model.generate([problem.prompt for problem in problems], sampler="fixed:steps=8+eos")

    tokens = frame(result)
    tokens["text"] = [model.tokenizer.decode([token]) for token in tokens["token"]]
    print(tokens.head(8).to_string(index=False))
    print(tokens.groupby("forward").agg(tokens=("token", "size"), score=("score", "mean")).round(3))
    order = tokens.groupby("row")[["forward", "position"]].corr().unstack()[("forward", "position")]
    print(f"correlation of forward and position: {order.mean():.2f} (1 would be left to right)")
    print(result.to_pandas()[["text", "nfe", "tokens_per_forward"]].to_string())


if __name__ == "__main__":
    main()
