"""The interface of networks that run plans, native or of another library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from .caches.kv_cache import KVCache
from .plan import Hidden, Plan


class Stack(Protocol):
    """A network that runs plans: the native decoder, or a transformers model with the same interface."""

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden: ...

    @property
    def embedding(self) -> Tensor: ...  # [V, E]

    def new_cache(self, batch: int, capacity: int) -> KVCache: ...

    def parameters(self) -> Iterable[Tensor]: ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]: ...


class WrapperStack:
    """A stack around `base`, with its weights and its caches; a subclass says how it runs plans."""

    base: Stack

    @property
    def embedding(self) -> Tensor:
        """The input embeddings of `base`."""
        return self.base.embedding

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """A new cache of `base`."""
        return self.base.new_cache(batch, capacity)

    def parameters(self) -> Iterable[Tensor]:
        """The parameters of `base`."""
        return self.base.parameters()

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """The named parameters of `base`."""
        return self.base.named_parameters()
