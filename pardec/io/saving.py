"""Results on disk: a folder of result.json and tensors.safetensors, or one .json file. Whole or not at all.

Images are PNG files in the folder's `images`, and stand in a .json file as base64.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pardec.models.errors import PardecError, one_line
from pardec.models.loading.json_text import parse
from pardec.samplers.trace import Fed, Trace

from ..images import pngs
from ..result_data import R, ResultData, Timing
from .output_paths import occupied
from .result_schema import check

FORMAT = "pardec.result/2"
_TENSORS = {"sequences": torch.int64, "commit_step": torch.int16, "commit_score": torch.float32}
_ROWS = (
    "generated", "nfe", "forward_rows", "tokens_fed", "draft_forwards", "deviation", "finish", "prompts", "seeds"
)  # fmt: skip
_PLAIN = (*_ROWS, "tokens", "text", "spec", "exact", "model", "settings", "environment")
_SAVED = "a saved result is the folder or the .json file that result.save(path) wrote"


class ResultError(PardecError, ValueError):
    """A result cannot be saved there, or what lies there is no saved result."""


def save(result: ResultData, target: Path) -> Path:
    """Writes `result` to a folder, or to one file if `target` ends in .json."""
    tensors = {
        **({} if result.latents is None else {"latents": result.latents}),
        "sequences": result.sequences,
        "commit_step": torch.from_numpy(np.ascontiguousarray(result.trace.commit_step)),
        "commit_score": torch.from_numpy(np.ascontiguousarray(result.trace.commit_score)),
    }
    try:
        if target.suffix == ".json":
            lists = {name: tensor.tolist() for name, tensor in tensors.items()}
            embedded = [base64.b64encode(file).decode("ascii") for file in _files(result)]
            write_file(target, json.dumps({**_plain(result), "tensors": lists, "images": embedded}))
        else:
            _write_folder(target, json.dumps(_plain(result)), tensors, _files(result))
    except OSError as error:
        raise ResultError(
            f"cannot save the result to {target}: {error.strerror or error}", hint="choose another place"
        ) from error
    return target


def load(source: Path, kind: type[R]) -> R:
    """Reads what `save` wrote, as a `kind` of result."""
    try:
        folder = source.is_dir()
        file = source / "result.json" if folder else source
        held = parse(file.read_bytes())
        if not isinstance(held, dict) or held.get("format") != FORMAT:
            raise ResultError(f"{file} is no saved result of this version", hint=_SAVED)
        tensors = load_file(source / "tensors.safetensors") if folder else held["tensors"]
        return _read(kind, held, tensors, _images(held, source if folder else None))
    except ResultError:
        raise
    except OSError as error:
        raise ResultError(f"cannot read a result from {source}: {error.strerror or error}", hint=_SAVED) from error
    except (
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise ResultError(f"{source} is damaged or no saved result: {what}", hint=_SAVED) from error


def _plain(result: ResultData) -> dict[str, Any]:
    """All but the tensors, as JSON can hold it."""
    return {
        "format": FORMAT,
        **{name: getattr(result, name) for name in _PLAIN if name not in ("settings", "environment")},
        "settings": dict(result.settings),
        "environment": dict(result.environment),
        "stop_ids": list(result.stop_ids),
        "timing": asdict(result.timing),
        "pieces": None if result.latents is not None else result.pieces,
        "lengths": result.trace.lengths.tolist(),
        "fed": [[_pack(fed) for fed in row] for row in result.trace.fed],
        "clocks": [list(row) for row in result.trace.clocks],
        "drafted": [list(row) for row in result.trace.drafted],
        "accepted": [list(row) for row in result.trace.accepted],
        "forced": [list(row) for row in result.trace.forced],
        "padding": result.padding,
        "shown": result.shown,
        "grid": result.grid,
        "stride": result.stride,
        "drawn": result.images is not None,
    }


def _files(result: ResultData) -> list[bytes]:
    """The images as PNG files."""
    return [pngs.png(image, pngs.of_result(result, row)) for row, image in enumerate(result.images or [])]


def _images(held: dict[str, Any], folder: Path | None) -> list[Image.Image] | None:
    """The images beside result.json, or in it where there is no folder; None where there were none."""
    if not held.get("drawn"):
        return None
    if folder is None:
        files = [base64.b64decode(text, validate=True) for text in held["images"]]
    else:
        files = [_image(folder, row).read_bytes() for row in range(len(held["tokens"]))]
    if len(files) != len(held["tokens"]):
        raise ValueError(f"images has {len(files)} images, expected {len(held['tokens'])}")
    return [_opened(file) for file in files]


def _opened(file: bytes) -> Image.Image:
    try:
        with pngs.opened(BytesIO(file)) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError) as error:  # what Pillow says of torn files
        raise ValueError("an image is no whole PNG file") from error


def _image(folder: Path, row: int) -> Path:
    return folder / "images" / f"{row}.png"


def _read(kind: type[R], held: dict[str, Any], found: dict[str, Any], images: list[Image.Image] | None) -> R:
    tensors: dict[str, Tensor] = {name: torch.as_tensor(found[name], dtype=dtype) for name, dtype in _TENSORS.items()}
    sequences, shape = tensors["sequences"], tensors["commit_step"].shape
    grid = None if held.get("grid") is None else (int(held["grid"][0]), int(held["grid"][1]))
    latents = _latents(found, len(sequences), grid)
    if latents is not None:
        tensors["sequences"] = torch.zeros(shape, dtype=torch.int64)  # what stands for ids in the trace
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape != shape:
            raise ValueError(f"{name} is {list(tensor.shape)} where sequences is {list(shape)}")
    for name in (*_ROWS, "tokens", "lengths", "fed"):
        if len(held[name]) != shape[0]:
            raise ValueError(f"{name} has {len(held[name])} rows, expected {shape[0]}")
    check(held, *shape)
    for when, row in zip(tensors["commit_step"], held["fed"], strict=True):
        if len(when) and not -2 <= int(when.min()) <= int(when.max()) < max(len(row), 1):
            raise ValueError(f"commit_step names forward {int(when.max())} of {len(row)}")
    for name in ("clocks", "drafted", "accepted"):
        if held[name] and list(map(len, held[name])) != list(map(len, held["fed"])):
            raise ValueError(f"{name} and fed name different numbers of forwards")
    trace = Trace(
        tokens=tensors["sequences"].numpy(),
        commit_step=tensors["commit_step"].numpy(),
        commit_score=tensors["commit_score"].numpy(),
        lengths=np.asarray(held["lengths"], dtype=np.int64),
        fed=tuple(tuple(_unpack(fed) for fed in row) for row in held["fed"]),
        clocks=tuple(map(tuple, held["clocks"])),
        drafted=tuple(map(tuple, held["drafted"])),
        accepted=tuple(map(tuple, held["accepted"])),
        forced=tuple(map(tuple, held.get("forced", ()))),
    )
    timing = held["timing"]
    parts = {str(name): float(seconds) for name, seconds in timing.get("parts", {}).items()}
    return kind(
        sequences=sequences,
        latents=latents,
        trace=trace,
        timing=Timing(float(timing["total_s"]), int(timing["tokens"]), parts),
        stop_ids=tuple(held["stop_ids"]),
        saved_pieces=held["pieces"],
        padding=int(held["padding"]),
        images=images,
        shown=held.get("shown"),
        grid=grid,
        stride=held.get("stride"),
        **{name: held[name] for name in _PLAIN},
    )


def _latents(found: dict[str, Any], rows: int, grid: tuple[int, int] | None) -> Tensor | None:
    """The vectors of a result's images, None where tokens have ids."""
    if "latents" not in found:
        return None
    latents = torch.as_tensor(found["latents"], dtype=torch.float32)
    if latents.ndim != 4 or len(latents) != rows or tuple(latents.shape[1:3]) != grid:
        raise ValueError(f"latents is {list(latents.shape)}, expected {rows} images of {grid}")
    return latents


def _pack(fed: Fed) -> list[int] | dict[str, int]:
    return {"start": fed.start, "stop": fed.stop} if isinstance(fed, range) else list(fed)


def _unpack(fed: list[int] | dict[str, int]) -> Fed:
    return range(fed["start"], fed["stop"]) if isinstance(fed, dict) else tuple(fed)


def write_file(target: Path, data: str | bytes) -> None:
    """Replaces `target` by a file that holds `data`, in one step; its folder is made if need be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _write_folder(target: Path, text: str, tensors: dict[str, Tensor], images: list[bytes]) -> None:
    """Puts the folder together beside its place, then moves it there; a saved result that stands there gives way."""
    if occupied(target):
        raise ResultError(f"{target} exists and is no saved result", hint="choose a new folder, or a name in .json")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        (fresh / "result.json").write_text(text, encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, fresh / "tensors.safetensors")
        for row, file in enumerate(images):
            _image(fresh, row).parent.mkdir(exist_ok=True)
            _image(fresh, row).write_bytes(file)
        os.chmod(fresh, 0o755)
        if target.exists():
            old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
            os.replace(target, old)
            os.replace(fresh, target)
            shutil.rmtree(old)
        else:
            os.replace(fresh, target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
