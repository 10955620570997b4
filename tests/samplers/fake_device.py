"""A device that PyTorch does not have: it computes on the CPU and lists every crossing between host and device.

    with FakeDevice() as device:
        model = pardec.load("tiny-dream", device=str(DEVICE), dtype="float32")
        device.crossings.clear()

Tensors on it refuse `numpy()` and operands on the host as tensors on a GPU do. An operation that would make a GPU's
host wait, such as `item`, `nonzero` or an index with a mask, is a download.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from pardec.models import host_transfer
from pardec.models.cuda_graphs.capture import CaptureError, Step

_setup_privateuseone_for_python_backend("fake")
DEVICE = torch.device("fake", 0)
ROOT = Path(__file__).resolve().parents[2]
_FLOORS = tuple(str(ROOT / floor) + "/" for floor in ("samplers", "models", "pardec"))

_ATEN = torch.ops.aten
# Operations whose results' shape or value the host needs: on a GPU it waits for them.
_WAITS = {
    _ATEN.nonzero, _ATEN.masked_select, _ATEN._unique, _ATEN._unique2, _ATEN.unique_dim, _ATEN.unique_consecutive,
    _ATEN.unique_dim_consecutive, _ATEN.equal, _ATEN.is_nonzero, _ATEN._local_scalar_dense, _ATEN.bincount,
    _ATEN.argwhere, _ATEN.masked_scatter, _ATEN.allclose,
}  # fmt: skip
_INDEXES = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_}
# Composed of operations that do not wait and allocate at most their result: they run in one piece, which is faster.
_WHOLE = {
    _ATEN.linear, _ATEN.rms_norm, _ATEN.scaled_dot_product_attention, _ATEN.softmax, _ATEN.chunk, _ATEN.narrow,
    _ATEN.__and__, _ATEN.__or__, _ATEN.resolve_conj, _ATEN.resolve_neg,
}  # fmt: skip


class OnDevice(Tensor):
    """A tensor on the fake device; `inner` has its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of the fake device")

    def tolist(self) -> Any:  # PyTorch refuses this for subclasses
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnDevice({self.inner!r})"


@dataclass(frozen=True, slots=True)
class Crossing:
    """One transfer, or one wait of the host for the device."""

    kind: str  # "download", "upload", or "blocking upload"
    what: str  # the operation
    where: str  # the innermost line of the project, as file:line


def _place() -> str:
    """The innermost line of the project's code, and the caller of the module of transfers."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_FLOORS):
            found.append(f"{Path(name).relative_to(ROOT)}:{frame.f_lineno}")
            if not name.endswith("models/host_transfer.py"):
                break
        frame = frame.f_back
    return " < ".join(found) if found else "elsewhere"


class FakeDevice(TorchDispatchMode):
    """Makes `DEVICE` usable; `crossings` are those since the start, in order.

    `launches` counts operations that would start work on a GPU: all on its tensors but views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.crossings: list[Crossing] = []
        self.launches = 0

    def __enter__(self) -> Self:
        self._lifted = torch._C._only_lift_cpu_tensors()  # type: ignore[attr-defined]
        host_transfer._PINNING.add(DEVICE.type)
        torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]  # `tensor(list, device=)` copies visibly
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._lifted:
            host_transfer._PINNING.discard(DEVICE.type)
        torch._C._set_only_lift_cpu_tensors(self._lifted)  # type: ignore[attr-defined]
        super().__exit__(kind, error, trace)

    def count(self, kind: str) -> int:
        """How many crossings of this kind there were."""
        return sum(crossing.kind == kind for crossing in self.crossings)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_inference_mode_enabled():  # views of either kind of tensor are views here
            with torch._C._InferenceMode(False):  # what `torch.inference_mode` does, in a fifth of its time
                torch._C._set_grad_enabled(False)
                return self.__torch_dispatch__(func, types, args, kwargs)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.__torch_dispatch__(func, types, args, kwargs)
        if func.overloadpacket in (_ATEN.pin_memory, _ATEN._pin_memory):
            return _pinned(args[0])
        if _composite(func):  # in inference mode PyTorch leaves this to the mode
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return self._run(func, args, dict(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and PyTorch's precaution costs at each operation

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given: dict[int, OnDevice] = {}
        hosts: list[Tensor] = []
        inner_args, inner_kwargs = _unwrapped(args, given, hosts), _unwrapped(kwargs, given, hosts)
        asked = kwargs.get("device")
        to_device = bool(given) if asked is None else torch.device(asked).type == DEVICE.type
        if not (given or to_device):
            return func(*args, **kwargs)
        packet = func.overloadpacket
        self.launches += not _is_view(func)
        if packet is _ATEN._to_copy:
            return self._to_copy(func, args, kwargs, on_device=to_device)
        if packet is _ATEN.copy_:
            return self._copy_(args, kwargs)
        if packet in _WAITS or (packet is _ATEN.repeat_interleave and kwargs.get("output_size") is None):
            self._add("download", str(packet))
        if packet is _ATEN.where and any(isinstance(each, Tensor) and not isinstance(each, OnDevice) for each in args):
            self._add("blocking upload", "a number of the host in `where`")
        if packet in _INDEXES:
            self._index(packet, args)
        elif given and hosts and packet is not _ATEN.lift_fresh:
            raise RuntimeError(f"{func}: a tensor on the host beside one on the device")
        if asked is not None:
            inner_kwargs["device"] = torch.device("cpu")
        inner_kwargs.pop("pin_memory", None)
        result = func(*inner_args, **inner_kwargs)
        return _wrapped(result, given) if to_device else result

    def _add(self, kind: str, what: str) -> None:
        self.crossings.append(Crossing(kind, what, _place()))

    def _add_upload(self, source: Tensor, what: str, *, asynchronous: bool) -> None:
        """From memory that is not pinned, the host waits in any case."""
        self._add("upload" if asynchronous and getattr(source, "pinned", False) else "blocking upload", what)

    def _to_copy(self, func: Any, args: Any, kwargs: dict[str, Any], *, on_device: bool) -> Any:
        source = args[0]
        was = isinstance(source, OnDevice)
        if was and not on_device:
            self._add("download", "to")
        elif on_device and not was:
            self._add_upload(source, "to", asynchronous=kwargs.get("non_blocking", False))
        kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        copy = func(source.inner if was else source, *args[1:], **kwargs)
        return OnDevice(copy) if on_device else copy

    def _copy_(self, args: Any, kwargs: dict[str, Any]) -> Any:
        target, source = args[:2]
        ours, theirs = isinstance(target, OnDevice), isinstance(source, OnDevice)
        asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        if ours and not theirs:
            self._add_upload(source, "copy_", asynchronous=asynchronous)
        elif theirs and not ours:
            self._add("download", "copy_")
        (target.inner if ours else target).copy_(source.inner if theirs else source)
        return target

    def _index(self, packet: Any, args: Any) -> None:
        """An index with a mask waits for its positions, one on the host for its own transfer."""
        target, indices = args[:2]
        if not isinstance(target, OnDevice):
            raise RuntimeError("indices on the device for a tensor on the host")
        for index in indices:
            if index is None:
                continue
            if index.dtype in (torch.bool, torch.uint8):
                filled = packet is not _ATEN.index and args[2].numel() == 1 and len(args) < 4
                if not filled:  # a single value is filled in without positions
                    self._add("download", "index with a mask")
            if not isinstance(index, OnDevice) and (index.dim() or packet is not _ATEN.index):
                self._add("blocking upload", "index on the host")


def _pinned(values: Tensor) -> Tensor:
    copy = values.clone()
    copy.pinned = True  # type: ignore[attr-defined]
    return copy


@cache
def _is_view(func: Any) -> bool:
    """Whether the operation's result is a view, or a tensor whose memory nothing writes."""
    kept = (each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
    return any(kept) or func.overloadpacket in (_ATEN.empty, _ATEN.detach, _ATEN.lift_fresh)


class Repeated:
    """A capturer that runs a step again where a GPU would replay it; neither may cross.

    Unlike a graph, it reads the host's values anew: the tests of a recorded step find those (`tests.models.traced`).
    """

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.replays = device, 0

    def capture(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], tuple[Tensor, ...]]:
        crossings = len(self.device.crossings)
        outputs = tuple(made.clone() for made in step())
        if self.device.crossings[crossings:]:
            raise CaptureError(f"crosses at {self.device.crossings[crossings].where}")

        def replay() -> None:
            launches, crossings = self.device.launches, len(self.device.crossings)
            for output, made in zip(outputs, step(), strict=True):
                output.copy_(made)
            assert not self.device.crossings[crossings:], "a replay cannot cross"
            self.device.launches = launches + 1
            self.replays += 1

        return replay, outputs


@cache
def _composite(func: Any) -> bool:
    return bool(func._can_decompose()) and func.overloadpacket not in _WHOLE


def _unwrapped(value: Any, given: dict[int, OnDevice], hosts: list[Tensor]) -> Any:
    """`value` with the inner tensors, which `given` gets by id; `hosts` gets tensors on the host, but for numbers."""
    if isinstance(value, OnDevice):
        given[id(value.inner)] = value
        return value.inner
    if isinstance(value, tuple | list):
        return type(value)([_unwrapped(item, given, hosts) for item in value])
    if isinstance(value, dict):
        return {name: _unwrapped(item, given, hosts) for name, item in value.items()}
    if isinstance(value, Tensor) and value.dim():
        hosts.append(value)
    return value


def _wrapped(value: Any, given: dict[int, OnDevice]) -> Any:
    """`value` with tensors on the device; an operation in place returns the tensor itself."""
    if isinstance(value, Tensor):
        return given[id(value)] if id(value) in given else OnDevice(value)
    return type(value)(_wrapped(item, given) for item in value) if isinstance(value, tuple | list) else value
