"""Weight files as image models publish them: a pickle that holds the tensors under one name, or safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import AGAIN, ModelError, UnknownModelError, did_you_mean, listed, one_line, there, unreadable
from ..files.catalog import EMBEDDED
from ..files.sources import locate
from ..files.weights import unpickled

_FIT = f"check that the settings and the weights belong together, or {AGAIN}"
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU. No code in the file is run.

    Raises ModelError if the file is missing, damaged, of another kind, or no plain dictionary of tensors.
    """
    if not there(file):
        raise ModelError(f"there is no file {file}", "check the path")
    if file.suffix not in SUFFIXES:
        raise ModelError(f"{file} is not a weight file", f"weight files end in {', '.join(SUFFIXES)}")
    if file.suffix == ".safetensors":
        try:
            return dict(load_file(file))
        except (SafetensorError, OSError, ValueError) as error:
            raise unreadable(file, f"is damaged or cut short: {one_line(error)}") from error
    tensors = unpickled(file, mmap=False)
    if not tensors:
        raise ModelError(f"{file} does not hold a plain dictionary of tensors", AGAIN)
    return tensors


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write `{"model": tensors}` (.pt) or plain safetensors, by the file's suffix; the file is replaced whole.
    Raises ModelError for another suffix.
    """
    if file.suffix not in (".pt", ".safetensors"):
        raise ModelError(f"cannot write weights to {file}", "name a file that ends in .pt or .safetensors")
    on_cpu = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    part = file.with_name(file.name + ".part")
    if file.suffix == ".pt":
        torch.save({"model": on_cpu}, part)
    else:
        save_file(on_cpu, part, metadata={"format": "pt"})
        part.chmod(0o644)  # as for other files
    os.replace(part, file)


class Shaped(Protocol):
    """Anything with a shape and a type: a tensor, or the description of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype | None: ...


def check_names(file: Path | str, tensors: Mapping[str, Shaped], expected: dict[str, tuple[int, ...]]) -> None:
    """Raise ModelError unless the tensors are exactly the wanted ones, by name and shape, and hold weights."""
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise ModelError(f"{file}: {len(missing)} of {len(expected)} tensors are missing: {listed(missing, 3)}", _FIT)
    unknown = [name for name in tensors if name not in expected]
    if unknown:
        raise ModelError(f"{file}: {len(unknown)} tensors belong to no part of the model: {listed(unknown, 3)}", _FIT)
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise ModelError(f"{file}: {name} has shape {list(tensors[name].shape)}, expected {list(shape)}", _FIT)
    foreign = [name for name in expected if (kind := tensors[name].dtype) is None or not kind.is_floating_point]
    if foreign:
        raise ModelError(f"{file}: {len(foreign)} tensors are not floating-point: {listed(foreign, 3)}", AGAIN)


def arguments_file(file: Path) -> Path:
    """The file in the weights' folder that states arguments."""
    return file.with_name(f"{file.stem}.args.json")


def embedded_files(stem: str) -> dict[str, Path]:
    """The files `<stem>.safetensors` that ship with the package, by folder name."""
    return {entry.parent.name: entry for entry in EMBEDDED.glob(f"*/{stem}.safetensors")}


def find_file(source: str, stem: str, what: str, patterns: tuple[str, ...]) -> Path:
    """The weights of `what`: an embedded name, a folder that holds one of the patterns, or the file.

    A file may lie on the hub: "owner/name/file". Raises ModelError for none, or more than one.
    """
    known = embedded_files(stem)
    if source in known:
        return known[source]
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        files = sorted(entry for pattern in patterns for entry in path.glob(pattern))
        if len(files) != 1:
            what = f"{len(files)} {what}s: {listed(entry.name for entry in files)}" if files else f"no {what}"
            raise ModelError(
                f"{path} holds {what}", f"name the file; in a folder, only {' or '.join(patterns)} is searched for"
            )
        return files[0]
    if path.is_file():
        return path
    if source.count("/") > 1 and not source.startswith((".", "/", "~")) and Path(source).suffix in SUFFIXES:
        file = locate(source).file
        if file is not None:
            return file
    raise UnknownModelError(
        f"no {what} {source!r}{did_you_mean(source, sorted(known))}",
        f"give an embedded one ({listed(sorted(known))}), a folder with one {patterns[-1]}, or the file",
    )


def only_file(folder: Path, patterns: Sequence[str]) -> Path | None:
    """The only file in the folder that has one of the patterns; None for none or several."""
    files = [file for pattern in patterns for file in folder.glob(pattern)]
    return files[0] if len(files) == 1 else None


def check_codes(codes: Tensor, size: int, *, least: int = 0) -> None:
    """Raises ModelError for a code outside a codebook of `size`."""
    low, high = (int(value) for value in codes.aminmax())
    if low < least or high >= size:
        raise ModelError(f"code {low if low < least else high} lies outside the codebook of {size}")
