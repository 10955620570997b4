"""The data of a page's replay: every token of finished rows with the forward that committed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .colour import ramp
from .token_text import TokenTexts

if TYPE_CHECKING:
    from ..result_data import ResultData


def scale() -> dict[str, list[str]]:
    """The colours of a replay, early to late: backgrounds, and the text colours on them."""
    return {"grounds": [background for background, _ in ramp()], "inks": [ink for _, ink in ramp()]}


def run(result: ResultData, row: int, name: str) -> dict[str, Any]:
    """One row of a result.

    Returns:
        name, spec, exact, nfe, finish, the final text (null without a tokenizer), and for the generated region: texts
        (up to and including the first end token), steps and scores (of the whole region). A step is a forward number
        from 0, or -1 for a token of the request, or -2 for one never committed.
    """
    trace = result.trace
    region, length = result.span(row), int(trace.lengths[row])
    start = region.start
    return {
        "name": name,
        "spec": result.spec,
        "exact": result.exact,
        "nfe": result.nfe[row],
        "finish": result.finish[row],
        "text": None if result.text is None else result.text[row],
        "texts": token_texts(result, row)[region],
        "steps": trace.commit_step[row, start:length].tolist(),
        "scores": [round(float(score), 4) for score in trace.commit_score[row, start:length]],
    }


def prompt(result: ResultData, row: int) -> str:
    """The text before the generated region."""
    return "".join(token_texts(result, row)[: result.prompts[row]])


def token_texts(result: ResultData, row: int) -> list[str]:
    """The text of each token of a row; ids without a tokenizer."""
    if result.pieces is not None:
        return result.pieces[row]
    return TokenTexts(None)(result.trace.tokens[row].tolist())
