"""The interface of networks that run plans, native or of another library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from .caches.kv_cache import KVCache
from .errors import ModelError
from .plan import Hidden, Plan


class Stack(Protocol):
    """A network that runs plans: the native decoder, or another one with the same interface.

    A class of one's own that names it as its base only needs `__call__`, and `new_cache` if it stores keys and values.
    """

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden: ...

    @property
    def embedding(self) -> Tensor:
        """The input embeddings [V, E]."""
        raise _lacking(self, "embedding", "inputs that are mixtures of tokens need it")

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` rows of `capacity` slots."""
        raise _lacking(self, "new_cache", "a masked model decodes without a cache with @none")

    def parameters(self) -> Iterable[Tensor]:
        """Every weight once."""
        return ()

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Every weight once, with its name."""
        return ()


def _lacking(stack: Stack, name: str, hint: str) -> ModelError:
    return ModelError(f"the stack {type(stack).__name__} has no {name}, which this request needs", hint)


def demand_plain(plan: Plan) -> None:
    """Raises ModelError for a plan that asks for more than logits of whole tokens: for stacks that give no more."""
    asked = {
        "inputs that are mixtures of tokens": plan.soft is not None,
        "a part of the layers": plan.layers is not None or bool(plan.skip) or plan.parallel != 1,
        "states or queries of layers": bool(plan.hidden) or plan.queries > 0,
        "attention weights": bool(plan.attention),
        "layers that compute a part of the queries": plan.similar is not None or plan.ranking is not None,
    }
    if wanted := [what for what, is_asked in asked.items() if is_asked]:
        raise ModelError(f"this request needs {wanted[0]}, and the network only gives logits", "use another sampler")


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
