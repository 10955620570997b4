"""Results on disk: a folder of result.json and tensors.safetensors, or one .json file, replaced atomically.

Images are PNG files in the folder's `images`, or base64 in a .json file.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
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
from pardec.models.files.json_text import parse
from pardec.samplers.logprobs import TokenLogprobs
from pardec.samplers.spec_values import MAX_INT_PARAM
from pardec.samplers.trace import Fed, Trace

from ..images import pngs
from ..result_data import R, ResultData, Timing, plain_floats
from .output_paths import occupied

FORMAT = "pardec.result/2"
_TENSORS = {"sequences": torch.int64, "commit_step": torch.int32, "commit_score": torch.float32}
_LOGPROBS: dict[str, tuple[str, Any]] = {  # fields of `TokenLogprobs`; not in every file
    "token_logprobs": ("own", np.float32),
    "top_ids": ("ids", np.int64),
    "top_logprobs": ("top", np.float32),
    "candidate_logprobs": ("candidates", np.float32),
}
_ROW_FIELDS = (
    "generated", "nfe", "forward_rows", "tokens_fed", "draft_forwards", "deviation", "finish", "prompts", "seeds"
)  # fmt: skip
_JSON_FIELDS = (*_ROW_FIELDS, "tokens", "text", "spec", "exact", "model", "settings", "environment")
_COUNTS_OF_FORWARDS = ("clocks", "drafted", "accepted", "forced")  # of a trace, per row; the last not in every file
_HINT = "a saved result is the folder or the .json file that result.save(path) or pardec generate -o wrote"


class ResultError(PardecError, ValueError):
    """A result cannot be saved to a path, or the path is not a saved result."""


def save(result: ResultData, target: Path) -> Path:
    """Writes `result` to a folder, or to one file if `target` ends in .json."""
    tensors = {
        **({} if result.latents is None else {"latents": result.latents}),
        "sequences": result.sequences,
        "commit_step": torch.from_numpy(np.ascontiguousarray(result.trace.commit_step)),
        "commit_score": torch.from_numpy(np.ascontiguousarray(result.trace.commit_score)),
        **_logprob_tensors(result.trace.logprobs),
        **({} if result.trace.serial is None else {"serial": torch.from_numpy(result.trace.serial.copy())}),
    }
    try:
        if target.suffix == ".json":
            lists = {name: _lists(name, tensor) for name, tensor in tensors.items()}
            embedded = [base64.b64encode(file).decode("ascii") for file in _image_files(result)]
            write_file(target, json.dumps({**_json_fields(result), "tensors": lists, "images": embedded}))
        else:
            _write_folder(target, json.dumps(_json_fields(result)), tensors, _image_files(result))
    except OSError as error:
        raise ResultError(
            f"cannot save the result to {target}: {error.strerror or error}", hint="choose another path"
        ) from error
    return target


def load(source: Path, kind: type[R]) -> R:
    """Reads a result written by `save`, as an instance of the class `kind`."""
    try:
        folder = source.is_dir()
        file = source / "result.json" if folder else source
        if file.suffix == ".jsonl" and file.is_file():
            raise ResultError(f"{file} holds rows, not a saved result", hint="pardec generate -o FILE.json saves one")
        data = parse(file.read_bytes())
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ResultError(f"{file} is not a saved result of this version", hint=_HINT)
        tensors = load_file(source / "tensors.safetensors") if folder else data["tensors"]
        return _build(kind, data, tensors, _read_images(data, source if folder else None))
    except ResultError:
        raise
    except OSError as error:
        raise ResultError(f"cannot read a result from {source}: {error.strerror or error}", hint=_HINT) from error
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
        raise ResultError(f"{source} is damaged or not a saved result: {what}", hint=_HINT) from error


def _json_fields(result: ResultData) -> dict[str, Any]:
    """All fields but the tensors, as JSON values."""
    return {
        "format": FORMAT,
        **{name: getattr(result, name) for name in _JSON_FIELDS if name not in ("settings", "environment")},
        "settings": dict(result.settings),
        "environment": dict(result.environment),
        "stop_ids": list(result.stop_ids),
        "timing": asdict(result.timing),
        "pieces": None if result.latents is not None else result.pieces,
        "lengths": result.trace.lengths.tolist(),
        "fed": [[_pack(fed) for fed in row] for row in result.trace.fed],
        **{name: [list(row) for row in getattr(result.trace, name)] for name in _COUNTS_OF_FORWARDS},
        **{name: getattr(result, name) for name in ("padding", "reused", "shown", "grid", "stride", "sides")},
        "drawn": result.images is not None,
    }


def _logprob_tensors(logprobs: TokenLogprobs | None) -> dict[str, Tensor]:
    if logprobs is None:
        return {}
    each = {name: getattr(logprobs, field) for name, (field, _) in _LOGPROBS.items()}
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in each.items()}


def _lists(name: str, tensor: Tensor) -> Any:
    """A tensor as JSON values; log-probabilities may be NaN."""
    floats = name in _LOGPROBS and tensor.is_floating_point()
    return plain_floats(tensor.numpy()) if floats else tensor.tolist()


def _logprobs(stored: dict[str, Any], shape: tuple[int, ...]) -> TokenLogprobs | None:
    """The log-probabilities of a result on canvases of `shape` [B, L]; None where it has none."""
    if "token_logprobs" not in stored:
        return None
    values = {}
    for name, (field, dtype) in _LOGPROBS.items():
        array = np.asarray(stored[name], dtype=dtype)  # None becomes NaN
        if dtype == np.float32:
            array = np.where(array == np.finfo(np.float32).min, -np.inf, array).astype(np.float32)
        if array.shape[:2] != shape or array.ndim != (2 if field == "own" else 3):
            raise ValueError(f"{name} is {list(array.shape)} where sequences is {list(shape)}")
        values[field] = array
    if values["ids"].shape != values["top"].shape:
        raise ValueError(f"top_ids is {list(values['ids'].shape)} and top_logprobs {list(values['top'].shape)}")
    return TokenLogprobs(**values)


def _image_files(result: ResultData) -> list[bytes]:
    """The images as PNG files."""
    return [pngs.png(image, pngs.of_result(result, row)) for row, image in enumerate(result.images or [])]


def _read_images(data: dict[str, Any], folder: Path | None) -> list[Image.Image] | None:
    """The images from the folder, or from the .json file without one; None if the result has none."""
    if not data.get("drawn"):
        return None
    if folder is None:
        files = [base64.b64decode(text, validate=True) for text in data["images"]]
    else:
        files = [_image_path(folder, row).read_bytes() for row in range(len(data["tokens"]))]
    if len(files) != len(data["tokens"]):
        raise ValueError(f"images has {len(files)} images, expected {len(data['tokens'])}")
    return [_decode_image(file) for file in files]


def _decode_image(file: bytes) -> Image.Image:
    try:
        with pngs.opened(BytesIO(file)) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError) as error:  # what Pillow raises for incomplete files
        raise ValueError("an image is not a complete PNG file") from error


def _image_path(folder: Path, row: int) -> Path:
    return folder / "images" / f"{row}.png"


def _serial(stored: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray | None:
    """[B, L] int32: serial numbers of tokens that edits may have moved; not in every file."""
    if "serial" not in stored:
        return None
    serial: np.ndarray = torch.as_tensor(stored["serial"], dtype=torch.int32).numpy()
    if serial.shape != shape:
        raise ValueError(f"serial is {list(serial.shape)} where sequences is {list(shape)}")
    return serial


def _build(kind: type[R], data: dict[str, Any], stored: dict[str, Any], images: list[Image.Image] | None) -> R:
    tensors: dict[str, Tensor] = {name: torch.as_tensor(stored[name], dtype=dtype) for name, dtype in _TENSORS.items()}
    sequences, shape = tensors["sequences"], tensors["commit_step"].shape
    grid = None if data.get("grid") is None else (int(data["grid"][0]), int(data["grid"][1]))
    latents = _latents(stored, len(sequences), grid)
    if latents is not None:
        tensors["sequences"] = torch.zeros(shape, dtype=torch.int64)  # the trace has no token ids
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape != shape:
            raise ValueError(f"{name} is {list(tensor.shape)} where sequences is {list(shape)}")
    for name in (*_ROW_FIELDS, "tokens", "lengths", "fed"):
        if len(data[name]) != shape[0]:
            raise ValueError(f"{name} has {len(data[name])} rows, expected {shape[0]}")
    check(data, *shape)
    for steps, row in zip(tensors["commit_step"], data["fed"], strict=True):
        if len(steps) and not -2 <= int(steps.min()) <= int(steps.max()) < max(len(row), 1):
            raise ValueError(f"commit_step names forward {int(steps.max())} of {len(row)}")
    for name in ("clocks", "drafted", "accepted"):
        if data[name] and list(map(len, data[name])) != list(map(len, data["fed"])):
            raise ValueError(f"{name} and fed have different numbers of forwards")
    if "logit_bias" in data["settings"]:  # JSON has names only
        data["settings"]["logit_bias"] = {int(token): bias for token, bias in data["settings"]["logit_bias"].items()}
    trace = Trace(
        tokens=tensors["sequences"].numpy(),
        commit_step=tensors["commit_step"].numpy(),
        commit_score=tensors["commit_score"].numpy(),
        lengths=np.asarray(data["lengths"], dtype=np.int64),
        fed=tuple(tuple(_unpack(fed) for fed in row) for row in data["fed"]),
        **{name: tuple(map(tuple, data.get(name, ()))) for name in _COUNTS_OF_FORWARDS},
        logprobs=_logprobs(stored, tuple(shape)),
        serial=_serial(stored, tuple(shape)),
    )
    timing = data["timing"]
    parts = {str(name): float(seconds) for name, seconds in timing.get("parts", {}).items()}
    return kind(
        sequences=sequences,
        latents=latents,
        trace=trace,
        timing=Timing(float(timing["total_s"]), int(timing["tokens"]), parts),
        stop_ids=tuple(data["stop_ids"]),
        stored_texts=data["pieces"],
        padding=int(data["padding"]),
        reused=list(data.get("reused", [0] * shape[0])),
        images=images,
        shown=data.get("shown"),
        grid=grid,
        stride=data.get("stride"),
        sides=None if data.get("sides") is None else tuple(data["sides"]),
        **{name: data[name] for name in _JSON_FIELDS},
    )


def _latents(stored: dict[str, Any], rows: int, grid: tuple[int, int] | None) -> Tensor | None:
    """The vectors of a result's images; None if tokens have ids."""
    if "latents" not in stored:
        return None
    latents = torch.as_tensor(stored["latents"], dtype=torch.float32)
    if latents.ndim != 4 or len(latents) != rows or tuple(latents.shape[1:3]) != grid:
        raise ValueError(f"latents is {list(latents.shape)}, expected {rows} images of {grid}")
    return latents


def _pack(fed: Fed) -> list[int] | dict[str, int]:
    return {"start": fed.start, "stop": fed.stop} if isinstance(fed, range) else list(fed)


def _unpack(fed: list[int] | dict[str, int]) -> Fed:
    return range(fed["start"], fed["stop"]) if isinstance(fed, dict) else tuple(fed)


def write_file(target: Path, data: str | bytes) -> None:
    """Replaces `target` atomically by a file with `data`; missing folders are created."""
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
    """Assembles the folder next to `target`, then moves it there, replacing a saved result."""
    if occupied(target):
        raise ResultError(f"{target} exists and is not a saved result", hint="choose a new folder, or a name in .json")
    target.parent.mkdir(parents=True, exist_ok=True)
    new_folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        (new_folder / "result.json").write_text(text, encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, new_folder / "tensors.safetensors")
        for row, file in enumerate(images):
            _image_path(new_folder, row).parent.mkdir(exist_ok=True)
            _image_path(new_folder, row).write_bytes(file)
        os.chmod(new_folder, 0o755)
        if target.exists():
            old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
            os.replace(target, old)
            os.replace(new_folder, target)
            shutil.rmtree(old)
        else:
            os.replace(new_folder, target)
    except BaseException:
        shutil.rmtree(new_folder, ignore_errors=True)
        raise


# A type, None, a tuple of alternatives, a list with the schema of its entries, or an object with its fields.
_SPAN = {"start": int, "stop": int}
_COUNTS = (
    "generated", "nfe", "forward_rows", "tokens_fed", "draft_forwards", "prompts", "seeds", "lengths", "stop_ids",
    "reused",
)  # fmt: skip
_SCHEMA: Mapping[str, Any] = {
    **{name: [int] for name in _COUNTS},
    **{name: [[int]] for name in (*_COUNTS_OF_FORWARDS, "tokens")},
    **dict.fromkeys(("spec", "exact", "model"), str),
    **dict.fromkeys(("settings", "environment"), dict),
    "deviation": [(float, None)],
    "finish": [str],
    "fed": [[(_SPAN, [int])]],
    "text": ([str], None),
    "pieces": ([[str]], None),
    "padding": int,
    "timing": {"total_s": float, "tokens": int},
    "shown": ([(str, int, None)], None),
    "grid": ([int], None),
    "stride": (int, None),
    "sides": ([int], None),
}
_OPTIONAL = ("forced", "shown", "grid", "stride", "sides", "reused")  # not in files of earlier versions


def check(data: Mapping[str, Any], rows: int, length: int) -> None:
    """Checks the fields of a result of `rows` rows on canvases of `length` tokens, and that they agree.

    Raises:
        KeyError: a field is missing.
        ValueError: a field is wrong; the message names it.
    """
    for name, form in _SCHEMA.items():
        if (name in data or name not in _OPTIONAL) and not _matches(data[name], form):
            raise ValueError(f"{name} has the wrong type for a result")
    by_row = ("tokens", "lengths", "fed", "generated", "nfe", "prompts", "text", "pieces", "shown", "reused")
    for name in by_row:
        if data.get(name) is not None and len(data[name]) != rows:
            raise ValueError(f"{name} has {len(data[name])} rows, expected {rows}")
    for row, (start, end) in enumerate(zip(data["prompts"], data["lengths"], strict=True)):
        generated = len(data["tokens"][row]) or data["generated"][row]
        if not 0 <= start <= start + generated <= end <= length:
            raise ValueError(f"row {row} has {generated} tokens after {start} on a canvas of {end}")
        if data["pieces"] is not None and len(data["pieces"][row]) != end:
            raise ValueError(f"pieces has {len(data['pieces'][row])} texts in row {row}, expected {end}")
        for fed in data["fed"][row]:
            # Drafts may extend past the canvas.
            if isinstance(fed, dict) and not 0 <= fed["start"] <= fed["stop"] <= length + MAX_INT_PARAM:
                raise ValueError(f"fed has {fed} in row {row}, far outside its canvas")
    _check_grid(data, length)


def _check_grid(data: Mapping[str, Any], length: int) -> None:
    """Checks that the grid of image tokens fits into the canvas."""
    grid, stride = data.get("grid"), data.get("stride")
    if grid is None:
        if data.get("drawn"):
            raise ValueError("grid is missing")
        return
    if len(grid) != 2 or min(grid) < 1 or (stride is not None and stride < grid[1]):
        raise ValueError(f"grid is {grid} with a stride of {stride}")
    sides = data.get("sides")
    if sides is not None and (not sides or min(sides) < 1 or [sides[-1]] * 2 != list(grid)):
        raise ValueError(f"sides is {sides} with a grid of {grid}")
    tokens = grid[0] * (stride or grid[1]) if sides is None else sum(side * side for side in sides)
    if max(data["prompts"], default=0) + tokens > length:
        raise ValueError(f"grid has {tokens} tokens, and canvases have {length}")


def _matches(value: Any, form: Any) -> bool:
    """Whether a value matches a schema."""
    if form is None:
        return value is None
    if isinstance(form, tuple):
        return any(_matches(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_matches(entry, form[0]) for entry in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            name in value and _matches(value[name], one) for name, one in form.items()
        )
    return isinstance(value, (int, float) if form is float else form) and not isinstance(value, bool)
