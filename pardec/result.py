"""The result of `generate`: a `ResultData` that prints, shows and saves itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pardec.models.printable import plain

from .io import arrays, saving
from .result_data import ResultData


@dataclass(frozen=True, eq=False, repr=False)
class Result(ResultData):
    __doc__ = ResultData.__doc__

    def to_pandas(self, *, tokens: bool = False) -> Any:
        """`rows()` as a pandas DataFrame, a line per row; or a line per token. Raises PardecError without pandas.

        With `tokens` the columns are row, position (from 0, the first after the prompt), id, token (its text; None
        without a tokenizer), step (the forward that committed it, -1 where none did), score (of the commit) and, if
        the request asked for `logprobs`, logprob. Raises SpecError for continuous tokens, which have no ids.
        """
        return arrays.frame(arrays.token_rows(self) if tokens else self.rows())

    def to_arrays(self, *, pad_id: int = 0) -> dict[str, np.ndarray]:
        """Rows as arrays padded on the right, in the form that trainers take.

        Returns:
            prompts [B, P] int64 and prompt_mask [B, P] bool; tokens [B, T] int64, mask [B, T] bool and step_map
            [B, T] int64 (-1 after a row); with `logprobs`, token_logprobs [B, T], and top_ids and top_logprobs
            [B, T, k]; with `logprob_ids`, candidate_logprobs [B, T, c]; NaN, and ids of -1, after a row.

        Raises:
            SpecError: the tokens are continuous.
        """
        return arrays.arrays(self, pad_id)

    def __repr__(self) -> str:
        content: object = self.text[0] if self.text else self.tokens[0]
        if self.shown:
            content = "image" if self.shown[0] is None else "no class" if self.shown[0] == -1 else self.shown[0]
        more = f" and {len(self.tokens) - 1} more" if len(self.tokens) > 1 else ""
        summary = f"{self.spec}, nfe {self.nfe}, {self.tokens_per_forward:.2f} tokens per forward"
        return plain(f"<Result {content!r}{more}: {summary}>")

    def _repr_html_(self) -> str:
        from .views.html import fragment

        return fragment(self)

    # --- on disk ---

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a folder (result.json, tensors.safetensors), or one file if `path` ends in .json; whole or not at all.

        Raises:
            ResultError: the path exists and is not a saved result, or it cannot be written.
        """
        return saving.save(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Reads what `save` wrote.

        Raises:
            ResultError: the path does not exist or is not a saved result, or a part of it is missing or misshapen.
        """
        return saving.load(Path(path), cls)
