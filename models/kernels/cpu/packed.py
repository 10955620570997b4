"""Weights in the memory layout of a kernel in C; other operations treat them as plain matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


class PackedWeight(Tensor):
    """A read-only matrix [N, K] of weights on a CPU. Other operations of PyTorch use `dense`."""

    @property
    def dense(self) -> Tensor:
        """The plain matrix [N, K], row by row."""
        raise NotImplementedError

    def rows(self, index: Tensor) -> Tensor:
        """[..., K] the rows `index` [...] of the plain matrix."""
        return self.dense[index]

    @property
    def parts(self) -> tuple[Any, ...]:
        """The arguments from which the same weight can be rebuilt; the tensors among them hold the numbers."""
        raise NotImplementedError

    def matmul(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        """base + x [..., K] @ self.T: [..., N]; `base` is of that shape, or a bias [N]."""
        raise NotImplementedError

    def matmul_into(self, out: Tensor, x: Tensor) -> None:
        """Writes x [M, K] @ self.T to `out` [M, N], of any type, whose rows need not be contiguous."""
        out.copy_(self.matmul(x))

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        copies = (part.clone() if isinstance(part, Tensor) else part for part in self.parts)
        return _rebuild(type(self), tuple(copies), isinstance(self, nn.Parameter))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (type(self), tuple(map(_alone, self.parts)), isinstance(self, nn.Parameter))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            with torch.inference_mode(False):  # a weight made in that mode could be no parameter
                return type(args[0])(*args[0].parts)
        if func is torch.ops.aten.embedding.default and isinstance(args[0], PackedWeight):
            return args[0].rows(args[1])
        if func is torch.ops.aten.linear.default and isinstance(args[1], PackedWeight):  # F.linear in inference mode
            return args[1].matmul(args[0], *args[2:])
        if func._schema.is_mutable and isinstance(args[0], PackedWeight):
            raise NotImplementedError(f"{func} would write to packed weights, which are read-only")
        args, kwargs = tree_map_only(PackedWeight, lambda weight: weight.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def _alone(part: Any) -> Any:
    """`part`, copied if it is a tensor that shares its memory: pickling writes all of that, other matrices included."""
    shares = isinstance(part, Tensor) and part.untyped_storage().nbytes() > part.nbytes
    return part.clone() if shares else part


def _rebuild(kind: type[PackedWeight], parts: tuple[Any, ...], parameter: bool) -> PackedWeight:
    weight = kind(*parts)
    return as_parameter(weight) if parameter else weight  # type: ignore[return-value]


def as_parameter(weight: Tensor) -> nn.Parameter:
    """`weight` as a parameter without gradients."""
    if not isinstance(weight, PackedWeight):
        return nn.Parameter(weight, requires_grad=False)
    # What nn.Parameter marks after it has called `detach`: for a subclass, PyTorch 2.13.0 then imports its distributed
    # tensors, 40 MB.
    weight._is_param = True
    return weight  # type: ignore[return-value]
