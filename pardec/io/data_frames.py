"""Rows as data frames, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pardec.models.errors import PardecError, install


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame with one line for each row. Raises PardecError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise PardecError("to_pandas needs pandas, which is not installed", hint=install("pandas")) from error
    return pandas.DataFrame(list(rows))
