"""Makes the cache of a text's first and last tokens for a request."""

from __future__ import annotations

from pardec.models.caches.window_cache import WindowCache
from pardec.models.caches.window_readers import Far
from pardec.models.cuda_graphs.runner import native
from pardec.models.model import LanguageModel


def window_cache(
    model: LanguageModel, rows: int, reach: int, *, nodes: int, sink: int, window: int, far: Far | None = None
) -> WindowCache:
    """An empty cache for texts of up to `reach` slots; a forward after the prompt feeds at most `nodes` nodes."""
    plain = (native(model.decoder) or model.decoder).new_cache(rows, sink + window + nodes - 1)
    return WindowCache(plain, sink=sink, window=window, nodes=nodes, reach=reach, far=far)
