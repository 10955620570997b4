"""Results as arrays, with rows of unequal length padded on the right, and as data frames of pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pardec.models.errors import PardecError, SpecError, install

if TYPE_CHECKING:
    from ..result_data import ResultData


def arrays(result: ResultData, pad_id: int) -> dict[str, np.ndarray]:
    """The arrays that `Result.to_arrays` returns."""
    if result.latents is not None:
        raise SpecError("to_arrays lays out token ids, and continuous tokens have none", "result.latents has them")
    prompts = [row[:end].numpy() for row, end in zip(result.sequences, result.prompts, strict=True)]
    values: Mapping[str, np.ndarray | None] = {
        "prompts": _padded(prompts, pad_id),
        "prompt_mask": _inside(prompts),
        "tokens": _padded([np.array(row, dtype=np.int64) for row in result.tokens], pad_id),
        "mask": _inside(result.tokens),
        "step_map": _padded(result.step_map, -1),
        "token_logprobs": _optional(result.token_logprobs, np.nan),
        "top_ids": None if (top := result.top_logprobs) is None else _padded([row.ids for row in top], -1),
        "top_logprobs": None if top is None else _padded([row.top for row in top], np.nan),
        "candidate_logprobs": _optional(result.candidate_logprobs, np.nan),
    }
    return {name: array for name, array in values.items() if array is not None}


def _optional(rows: Sequence[np.ndarray] | None, blank: float) -> np.ndarray | None:
    return None if rows is None else _padded(rows, blank)


def _padded(rows: Sequence[np.ndarray], blank: float) -> np.ndarray:
    """Pads rows [n, ...] with `blank` to [B, T, ...]."""
    whole = np.full((len(rows), max(map(len, rows)), *rows[0].shape[1:]), blank, dtype=rows[0].dtype)
    for target, row in zip(whole, rows, strict=True):
        target[: len(row)] = row
    return whole


def _inside(rows: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """[B, T] bool: the positions within each row."""
    lengths = np.array(list(map(len, rows)))
    inside: np.ndarray = np.arange(lengths.max()) < lengths[:, None]
    return inside


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
