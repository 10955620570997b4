"""BM25: how well chunks of tokens answer a query, by the tokens that they have in common.

The Probabilistic Relevance Framework: BM25 and Beyond, https://doi.org/10.1561/1500000019

    score(c) = sum over tokens t of the query  idf(t) n(t, c) (k1 + 1) / (n(t, c) + k1 (1 - b + b |c| / mean |c|))
    idf(t) = log(1 + (N - N_t + 1/2) / (N_t + 1/2)),  N_t of the N chunks contain t

Terms are token ids, so that nothing has to be known of the language.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_K1, _B = 1.5, 0.75


def bm25(chunks: Sequence[np.ndarray], query: np.ndarray) -> np.ndarray:
    """The score [N] float64 of each of N chunks of token ids for a `query` [Q]; a repeated token counts each time.

    >>> bm25([np.array([1, 2, 2]), np.array([3, 4, 1])], np.array([2, 5])).round(2).tolist()
    [0.99, 0.0]
    """
    terms, times = np.unique(query, return_counts=True)
    count = np.array([[np.count_nonzero(chunk == term) for term in terms] for chunk in chunks], dtype=np.float64)
    size = np.array([len(chunk) for chunk in chunks], dtype=np.float64)
    containing = (count > 0).sum(0)
    idf = np.log1p((len(chunks) - containing + 0.5) / (containing + 0.5))
    weight = count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * size / size.mean())[:, None])
    scores: np.ndarray = weight @ (idf * times)
    return scores
