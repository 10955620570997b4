"""Finished rows as the replay of a page reads them: every token with the forward that committed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .colour import ramp
from .token_text import Pieces

if TYPE_CHECKING:
    from ..result_data import ResultData


def scale() -> dict[str, list[str]]:
    """The colours of a replay, early to late: grounds, and the text on them."""
    return {"grounds": [ground for ground, _ in ramp()], "inks": [ink for _, ink in ramp()]}


def run(result: ResultData, row: int, name: str) -> dict[str, Any]:
    """One row of a result.

    Returns:
        name, spec, exact, nfe, finish, the final text (null without a tokenizer), and of the generated region texts (up
        to and with the first end token), steps and scores (of the whole region): forward number from 0, -1 given by
        the request, -2 never committed.
    """
    trace = result.trace
    here, length = result.span(row), int(trace.lengths[row])
    start = here.start
    return {
        "name": name,
        "spec": result.spec,
        "exact": result.exact,
        "nfe": result.nfe[row],
        "finish": result.finish[row],
        "text": None if result.text is None else result.text[row],
        "texts": pieces(result, row)[here],
        "steps": trace.commit_step[row, start:length].tolist(),
        "scores": [round(float(score), 4) for score in trace.commit_score[row, start:length]],
    }


def prompt(result: ResultData, row: int) -> str:
    """What stood before the generated region, as text."""
    return "".join(pieces(result, row)[: result.prompts[row]])


def pieces(result: ResultData, row: int) -> list[str]:
    """The tokens of a row as text, ids without a tokenizer."""
    if result.pieces is not None:
        return result.pieces[row]
    return Pieces(None)(result.trace.tokens[row].tolist())
