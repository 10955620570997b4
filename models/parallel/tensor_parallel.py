"""Tensor parallel: each process of a run holds a share of every layer's heads and of its MLP's width.

Queries, keys, values, gate and up are split by columns, that is by heads and by inner units, those of every expert too;
out and down by rows, and what the processes make of them is summed. So a layer waits twice for the others, and the
cache has a process's own heads only. Embedding, norms, routers and head are in every process, so that each has all
logits, bit for bit the same, and decides alike.

Megatron-LM, https://arxiv.org/abs/1909.08053
"""

from __future__ import annotations

import atexit
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..decoder import Decoder
from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..files.arguments import check_torchrun
from ..layers.layer import DecoderLayer

if TYPE_CHECKING:  # its module, and that of distributed tensors, import 40 MB that one process has no use for
    from torch.distributed.device_mesh import DeviceMesh

_AXES: dict[str, int] = {  # what is split, by the last component of a parameter's name; all others are in every process
    "qkv_weight": 0,
    "qkv_bias": 0,
    "out_weight": 1,
    "gate_up_weight": 0,
    "gate_up_bias": 0,
    "down_weight": 1,
    "experts_gate_up_weight": 0,
    "experts_down_weight": 1,
    "shared_gate_up_weight": 0,
    "shared_down_weight": 1,
}


class Shares:
    """The processes of a run, and this process's share of the model. Made by `shares`."""

    def __init__(self, mesh: DeviceMesh, config: DecoderConfig) -> None:
        """Raises ModelError where heads or inner units do not divide."""
        count = mesh.size()
        sizes = _sizes(config)
        for name, size in sizes.items():
            if size % count:
                fits = [n for n in range(2, count) if not any(part % n for part in sizes.values())]
                raise ModelError(
                    f"{count} processes cannot share {name}={size} evenly",
                    f"start {' or '.join(map(str, fits))} processes" if fits else "leave tensor parallel out",
                )
        self.mesh, self.count, self.config = mesh, count, config
        self.parameters = 0  # count of the whole model

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """This process's share of the whole parameter `name`, in separate memory."""
        self.parameters += weight.numel()
        axis = _AXES.get(name.rpartition(".")[2])
        if axis is None:
            return weight
        from torch.distributed.tensor import Shard, distribute_tensor

        # Fused tensors are split one by one, so that a process has whole heads, and gates with their ups.
        tensors = torch.split(weight, list(self.config.fused_rows(name)) or [weight.shape[0]])
        # No source: every process has read the weight, and takes its share without a message from the others.
        parts = [distribute_tensor(each, self.mesh, [Shard(axis)], src_data_rank=None).to_local() for each in tensors]
        return torch.cat(parts)  # copies a single part as well, so that the whole is freed

    def divide(self, decoder: Decoder) -> None:
        """Makes a decoder whose parameters are shares run as its share of the whole."""
        split: dict[str, Any] = {name: getattr(self.config, name) // self.count for name in _SPLIT}
        if self.config.experts is not None:
            widths = {name: getattr(self.config.experts, name) // self.count for name in _SPLIT_EXPERTS}
            split["experts"] = replace(self.config.experts, **widths)
        decoder.config = replace(self.config, **split)
        group = self.mesh.get_group()
        for layer in decoder.layers:
            assert isinstance(layer, DecoderLayer), "a decoder's layers are its own"
            layer.config, layer.group = decoder.config, group


_SPLIT = ("heads", "kv_heads", "mlp_width")
_SPLIT_EXPERTS = ("width", "shared_width")


def _sizes(config: DecoderConfig) -> dict[str, int]:
    """The sizes that are divided among processes, by name."""
    sizes = {name: getattr(config, name) for name in _SPLIT}
    if config.experts is not None:
        sizes |= {f"experts.{name}": getattr(config.experts, name) for name in _SPLIT_EXPERTS}
    return sizes


def own_device(requested: str | torch.device) -> str | torch.device:
    """The device of this process on its machine, unless `requested` names one by number.

    Raises ArgumentError where torchrun did not start this process.
    """
    check_torchrun()
    device = str(requested)
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return requested


def shares(device: torch.device, config: DecoderConfig) -> Shares:
    """The shares of the processes that torchrun started, this one on `device`; gloo on a CPU, nccl on GPUs."""
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        find_interface()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        destroy_group_at_exit()
    return Shares(init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",)), config)


def find_interface() -> None:
    """Sets gloo's network interface to loopback if gloo would find none by the host's name."""
    one_machine = os.environ["WORLD_SIZE"] == os.environ.get("LOCAL_WORLD_SIZE")
    if not one_machine or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]


def destroy_group_at_exit() -> None:
    """Ends the process group before the interpreter ends.

    gloo's threads let go of a collective's tensors some time after it is done, and need the interpreter for that: one
    that comes when the interpreter is gone aborts the process, and torchrun then calls a finished run a failed one.
    """
    atexit.unregister(_destroy_group)  # once, however often a process asks
    atexit.register(_destroy_group)


def _destroy_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
