"""A result as rows of tokens with their texts, steps and scores, for every view of a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .token_text import TokenTexts

if TYPE_CHECKING:
    from ..result_data import ResultData


@dataclass(frozen=True, slots=True)
class TracedToken:
    """One token. `step` is the forward that committed it; -1 for a token of the request, -2 for one never committed."""

    text: str
    step: int
    score: float


def traced_tokens(result: ResultData) -> list[list[TracedToken]]:
    """Per row, the tokens of the request and the generated ones up to the first end token."""
    trace = result.trace
    texts = result.pieces or [TokenTexts(None)(row) for row in trace.tokens.tolist()]
    rows = []
    for row in range(len(result.prompts)):
        end = result.span(row).stop
        steps, scores = trace.commit_step[row, :end].tolist(), trace.commit_score[row, :end].tolist()
        rows.append([TracedToken(*token) for token in zip(texts[row][:end], steps, scores, strict=True)])
    return rows


def last_step(rows: list[list[TracedToken]]) -> int:
    """The highest forward number that committed anything, 0 if none did."""
    return max((token.step for row in rows for token in row), default=0)


def heading(result: ResultData) -> str:
    """The run in one line: model, spec and forwards."""
    forwards = ", ".join(map(str, result.nfe[:8])) + (", ..." if len(result.nfe) > 8 else "")
    return f"{result.model} | {result.spec} | forwards {forwards} | {result.tokens_per_forward:.2f} tokens per forward"
