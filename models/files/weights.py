"""Finds, inspects and reads published weight files, tensor by tensor."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import AGAIN, ModelError, listed, one_line, there, unreadable
from .gguf import is_gguf
from .gguf.listing import source_of
from .gguf.tensors import FileTensor, file_tensors
from .json_text import parse

# Keys that may hold the tensors in a pickle, averaged ones first; without one the pickle is the tensors.
CONTAINERS = ("model_ema", "model", "module", "state_dict", "vae")
# Prefixes that DistributedDataParallel, torch.compile and PEFT add to every name of a state dict.
_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
_PLAIN = "save the state dict of the model in it, which names each tensor"
_REOPEN_BYTES = 64 << 20  # mapped pages stay resident until the file is closed
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Published:
    """One tensor of a weight file, or of a state dict."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | None  # None: not a floating-point type that can be loaded
    change: Callable[[Tensor], Tensor] | None = None  # an adapter's change, which keeps the shape
    tensor: Tensor | None = None  # the tensor, where it is in memory and in no file
    blocks: FileTensor | None = None  # the tensor of a GGUF file
    made: Callable[[], Tensor] | None = None  # makes the tensor of others: see `quantized`


def files_of(folder: Path, gguf: Path | None) -> list[Path]:
    """The weight files of a model: those in its folder, or the GGUF file. Raises ModelError for missing ones."""
    return weight_files(folder) if gguf is None else [gguf]


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder.

    Raises ModelError if there are none, a shard is missing, or the folder holds one file and all shards of an index.
    """
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
        ("checkpoint-last.pth", ""),
    ):
        if there(folder / single):
            parts = indexed(folder / index) if index and there(folder / index) else []
            if parts and parts != [single] and all(there(folder / name) for name in parts):
                raise ModelError(
                    f"{folder} holds its weights twice: in {single}, and in the {len(parts)} files of {index}",
                    "they may be two models, saved one after the other: move one of the two out of the folder",
                )
            return [folder / single]
        if index and there(folder / index):
            names = indexed(folder / index)
            missing = [name for name in names if not there(folder / name)]
            if missing:
                raise ModelError(
                    f"{folder}: {len(missing)} of {len(names)} weight files are missing: {listed(missing)}",
                    f"{index} names them; copy or download them into the folder",
                )
            return [folder / name for name in names]
    if (gguf := source_of(folder)) is not None:
        return [gguf]
    named = "model.safetensors, model.safetensors.index.json, pytorch_model.bin or pytorch_model.bin.index.json"
    others = [file.name for pattern in ("*.safetensors", "pytorch_model*.bin") for file in folder.glob(pattern)]
    if others := sorted(set(others) - {"adapter_model.safetensors"}):
        raise ModelError(
            f"{folder} has weight files and no index that lists them: {listed(others, 3)}",
            f"copy or download the index, or rename a single file; expected {named}",
        )
    raise ModelError(f"{folder} has a config.json but no weights", f"expected {named}")


def indexed(index: Path) -> list[str]:
    """Names of the shards that an index file lists, sorted."""
    try:
        shards = sorted(set(parse(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise unreadable(index, f"cannot be read as a weight index: {error!r}") from error
    outside = [name for name in shards if Path(str(name)).name != name or name in ("", "..") or len(name) > 255]
    if outside:
        raise ModelError(f"{index} names files outside its folder: {listed(map(str, outside))}", AGAIN)
    return [str(name) for name in shards]


def inspect(files: Iterable[Path]) -> dict[str, Published]:
    """Every tensor of the files by name. Raises ModelError for a damaged file or a name that two files hold."""
    published: dict[str, Published] = {}
    for file in files:
        for name, entry in _inspect(file):
            if name in published:
                raise ModelError(
                    f"tensor {name} is in {published[name].file.name} and again in {file.name}",
                    "one of them is a copy, or of another version: download or copy both again",
                )
            published[name] = entry
    return published


def read(published: dict[str, Published], load: Callable[[str, Tensor], None]) -> None:
    """Call `load(name, tensor)` for every tensor, file by file; the tensor is only valid during the call.

    Where an adapter changes a tensor, `load` gets what it makes of it.
    """
    by_file: dict[Path, list[str]] = {}

    def hand_over(name: str, tensor: Tensor) -> None:
        change = published[name].change
        load(name, tensor if change is None else change(tensor))

    for name, entry in published.items():
        if entry.tensor is not None:
            hand_over(name, entry.tensor)
        elif entry.made is not None:
            hand_over(name, entry.made())
        elif entry.blocks is not None:
            hand_over(name, entry.blocks.values())
        else:
            by_file.setdefault(entry.file, []).append(name)
    for file, names in by_file.items():
        if file.suffix == ".safetensors":
            for batch in _portions(names, published):
                with _opened(file) as handle:
                    for name in batch:
                        hand_over(name, handle.get_tensor(name))
        else:
            state = unpickled(file)
            for name in names:
                hand_over(name, state.pop(name))


def tensors_of(published: Mapping[str, Published], *names: str) -> list[Tensor]:
    """Published tensors of these names, in memory."""
    tensors: dict[str, Tensor] = {}
    read({name: published[name] for name in names}, lambda name, tensor: tensors.__setitem__(name, tensor.clone()))
    return [tensors[name] for name in names]


def in_memory(state: Mapping[str, Tensor]) -> dict[str, Published]:
    """Describes the tensors of a state dict, as `inspect` does for files."""
    return {
        name: Published(
            Path(), tuple(tensor.shape), tensor.dtype if tensor.dtype in _DTYPES.values() else None, tensor=tensor
        )
        for name, tensor in state.items()
    }


def unwrapped(published: Mapping[str, Published], expected: Mapping[str, object]) -> dict[str, Published]:
    """The tensors by names without the prefixes of module wrappers.

    Nothing is taken off where some name is one of the `expected` ones as it is, or where not all names have it.
    """
    result = dict(published)
    while result and not any(name in expected for name in result):
        wrapper = next((each for each in _WRAPPERS if all(name.startswith(each) for name in result)), None)
        if wrapper is None:
            break
        result = {name.removeprefix(wrapper): entry for name, entry in result.items()}
    return result


def count_parts(names: Iterable[str], part: str) -> int:
    """The number of parts `<part>.0`, `<part>.1` and so on among the names of tensors."""
    indices = (re.match(re.escape(part) + r"\.(\d+)\.", name) for name in names)
    return max((int(number[1]) + 1 for number in indices if number), default=0)


def _portions(names: list[str], published: dict[str, Published]) -> Iterator[list[str]]:
    portion: list[str] = []
    size = 0
    for name in names:
        portion.append(name)
        dtype = published[name].dtype or torch.float32
        size += torch.Size(published[name].shape).numel() * dtype.itemsize
        if size >= _REOPEN_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _opened(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise unreadable(file, f"is damaged or cut short: {error}") from error


def _inspect(file: Path) -> Iterator[tuple[str, Published]]:
    if file.suffix == ".safetensors":
        return _inspect_safetensors(file)
    with suppress(OSError):  # whoever reads a missing file reports it
        if is_gguf(file):
            return _inspect_gguf(file)
    return _inspect_pickled(file)


def _inspect_gguf(file: Path) -> Iterator[tuple[str, Published]]:
    for name, tensor in file_tensors(file):
        yield name, Published(file, tensor.shape, tensor.dtype, blocks=tensor)


def _inspect_safetensors(file: Path) -> Iterator[tuple[str, Published]]:
    with _opened(file) as handle:
        for name in handle.keys():  # noqa: SIM118 - not a mapping
            entry = handle.get_slice(name)
            yield name, Published(file, tuple(entry.get_shape()), _DTYPES.get(entry.get_dtype()))


def _inspect_pickled(file: Path) -> Iterator[tuple[str, Published]]:
    for name, tensor in unpickled(file).items():
        yield name, Published(file, tuple(tensor.shape), tensor.dtype if tensor.dtype in _DTYPES.values() else None)


def unpickled(file: Path, *, mmap: bool = True) -> dict[str, Tensor]:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # training settings are stored with the tensors
            try:
                state = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
            except RuntimeError:  # files older than torch 1.6 cannot be mapped
                state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch each raise their own
        raise unreadable(file, f"cannot be read as a dictionary of tensors: {one_line(error)}") from error
    trainer = state.get("trainer") if isinstance(state, dict) else None
    if isinstance(trainer, dict):  # from VAR's or Infinity's training
        state = next((trainer[name] for name in ("var_wo_ddp", "gpt_fsdp") if name in trainer), state)
    if isinstance(state, dict):
        state = next((state[name] for name in CONTAINERS if isinstance(state.get(name), dict)), state)
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError(f"{file} does not hold a plain dictionary of tensors", _PLAIN)
    return state


def mismatches(
    published: Mapping[str, Published],
    used: Mapping[str, Published],
    expected: Mapping[str, tuple[int, ...]],
    harmless: Sequence[str],
) -> str:
    """Compares published tensors with the `expected` names and shapes; returns what differs, or "" if nothing does.

    Others may be there if their names have one of the `harmless` patterns.
    """
    unknown = (name for name in published if name not in expected)
    problems = {
        "missing": [name for name in expected if name not in published],
        "not known": [name for name in unknown if not any(re.fullmatch(pattern, name) for pattern in harmless)],
        "of the wrong shape": [
            f"{name} {list(entry.shape)} instead of {list(expected[name])}"
            for name, entry in used.items()
            if entry.shape != expected[name]
        ],
        "not floating-point": [name for name, entry in used.items() if entry.dtype is None],
    }
    return "; ".join(f"{len(names)} {kind}: {listed(names)}" for kind, names in problems.items() if names)
