"""Rows as data frames, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pardec.models.errors import PardecError, SpecError, install

if TYPE_CHECKING:
    from ..result_data import ResultData


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame with one line for each row. Raises PardecError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise PardecError("to_pandas needs pandas, which is not installed", hint=install("pandas")) from error
    return pandas.DataFrame(list(rows))


def token_rows(result: ResultData) -> list[dict[str, Any]]:
    """Every generated token as a dict. Raises SpecError for continuous tokens."""
    if result.latents is not None:
        raise SpecError("tokens=True lists token ids, and continuous tokens have none", "result.latents has them")
    rows = []
    for row, ids in enumerate(result.tokens):
        span, own = result.span(row), None if result.token_logprobs is None else result.token_logprobs[row]
        texts = None if result.pieces is None else result.pieces[row][span]
        steps, scores = result.step_map[row].tolist(), result.trace.commit_score[row, span].tolist()
        for at, token in enumerate(ids):
            entry = {"row": row, "position": at, "id": token, "token": None if texts is None else texts[at]}
            entry |= {"step": steps[at], "score": scores[at]}
            rows.append(entry | ({} if own is None else {"logprob": float(own[at])}))
    return rows
