"""Reads weights of modules whose parameters have the published names, as in image models."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..files.weights import Published, read
from ..images.weight_files import check_names
from ..kernels import layout

NamedTensors = Mapping[str, tuple[nn.Module, str]]  # published name -> module, name within it


def named_tensors(module: nn.Module, prefix: str = "") -> dict[str, tuple[nn.Module, str]]:
    """The module and inner name of each tensor of a module, by its name after `prefix`."""
    return {prefix + name: (module, name) for name in module.state_dict()}


def fill_modules(
    name: str, published: dict[str, Published], expected: NamedTensors, *, dtype: torch.dtype, device: torch.device
) -> None:
    """Reads the weights of modules made on the device "meta", and leaves these ready to run.

    Matrices of linear layers are laid out for matmuls of few rows.
    Raises ModelError, in the name of the model `name`, for missing, surplus or misshapen tensors.
    """
    modules = {id(module): module for module, _ in expected.values()}
    states = {key: module.state_dict() for key, module in modules.items()}
    shapes = {theirs: tuple(states[id(module)][ours].shape) for theirs, (module, ours) in expected.items()}
    check_names(name, published, shapes)

    def load(theirs: str, tensor: Tensor) -> None:
        module, ours = expected[theirs]
        linear = isinstance(module.get_submodule(ours.rpartition(".")[0]), nn.Linear)
        weight = (layout.empty if linear else torch.empty)(tensor.shape, dtype=dtype, device=device)
        layout.fill(weight, tensor)
        module.load_state_dict({ours: weight}, strict=False, assign=True)

    read(published, load)
    for module in modules.values():
        module.eval().requires_grad_(False)
