"""A cache of transformers that reports earlier tokens, but holds none."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache


class Past(DynamicCache):  # type: ignore[misc]
    """A cache for probing later positions: queries come after `count` tokens, which nothing attends to.

    So a model that counts positions from its cache, and not from its `position_ids`, shows itself in one short forward.
    """

    def __init__(self, config: Any, count: int) -> None:
        super().__init__(config=config)
        self.count = count

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Returns the keys and values unchanged."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of earlier tokens."""
        return self.count

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The position of the first query."""
        return self.count

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The number of keys in a forward, and the position of the first."""
        return query_length, self.count
