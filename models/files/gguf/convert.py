"""A GGUF file as a folder of safetensors, config and tokenizer, in the cache: converted once, by the file's digest.

Quantized tensors become float32, which holds every value they have; float16 and bfloat16 stay what they are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ..cache_dir import cache_folder, private, require_own
from .architecture import Target, describe
from .header import Header, StoredTensor, library, read_header
from .listing import FOLDER, SOURCE
from .tokenizer import special_ids, tokenizer_files

_FORMAT = 2  # version of the folders; a new number converts files again
_PART = "part-"
_WEIGHTS = "model.safetensors"
_AS_THEY_ARE = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_CHUNK = 1 << 24  # values dequantized at a time
_STALE_S = 24 * 3600
_ready: dict[tuple[str, int, int], Path] = {}


def converted(file: Path) -> Path:
    """The folder that `file` was converted to; the first call converts it.

    Raises:
        ModelError: it is no GGUF file, is damaged, or holds what is not supported; the cache cannot be written to.
    """
    try:
        status = file.stat()
        identity = (os.path.realpath(file), status.st_size, status.st_mtime_ns)
        if identity not in _ready or not (_ready[identity] / "config.json").is_file():
            _ready[identity] = _convert(read_header(file))
    except OSError as error:
        raise _unwritable(file, error) from error
    return _ready[identity]


def _convert(header: Header) -> Path:
    key = f"{hashlib.sha256(header.content).hexdigest()[:32]}-{_FORMAT}"
    with private(FOLDER) as folder:
        if not (folder / key).is_dir():
            config, targets = describe(header)
            part = Path(tempfile.mkdtemp(dir=folder, prefix=_PART))
            try:
                _write(header, part, config, targets)
                with suppress(FileExistsError):  # another process was faster
                    os.rename(part, folder / key)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            finally:
                shutil.rmtree(part, ignore_errors=True)
                _clear(folder)
    with private(FOLDER, key) as folder:
        for name in os.listdir(folder):
            require_own(folder / name)
        _name_source(folder, header.file)
    return cache_folder() / FOLDER / key


def _name_source(folder: Path, file: Path) -> None:
    """Notes where the file lies now, if it was elsewhere when it was converted: `pardec list models` shows it."""
    source = json.loads((folder / SOURCE).read_bytes())
    if source["file"] != os.path.abspath(file):
        handle, part = tempfile.mkstemp(dir=folder, prefix=_PART)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({**source, "file": os.path.abspath(file)}, out)
        os.replace(part, folder / SOURCE)


def _write(header: Header, folder: Path, config: dict[str, Any], targets: dict[str, Target]) -> None:
    """The files of a checkpoint folder, on disk before this returns."""
    vocabulary, positions = (
        config["vocab_size"],
        header.metadata[f"{header.metadata['general.architecture']}.context_length"],
    )
    special = special_ids(header, vocabulary)
    files = tokenizer_files(header, vocabulary, positions)
    files["config.json"] = json.dumps({**config, **special}, indent=2)
    files["generation_config.json"] = json.dumps(special, indent=2)
    files[SOURCE] = json.dumps(_source(header, targets, config["model_type"]))
    total = sum(_published_size(header.tensors[name]) for name in targets)
    if shutil.disk_usage(folder).free < total:
        raise OSError(errno.ENOSPC, f"{total / 2**30:.2f} GiB of disk space are needed")
    _save(folder / _WEIGHTS, _safetensors(header, targets))
    for name, text in files.items():
        _save(folder / name, iter([text.encode("utf-8")]))


def _source(header: Header, targets: dict[str, Target], family: str) -> dict[str, Any]:
    """The entry that `pardec list models` shows."""
    kinds = Counter[str]()
    for name in targets:
        kinds[header.tensors[name].kind] += header.tensors[name].count
    title = header.metadata.get("general.name")
    summary = f"{title if isinstance(title, str) and title else header.file.stem}, {kinds.most_common(1)[0][0]}"
    return {"file": os.path.abspath(header.file), "family": family, "summary": summary, "parameters": kinds.total()}


def _safetensors(header: Header, targets: dict[str, Target]) -> Iterator[bytes | memoryview]:
    """The content of a safetensors file, tensor by tensor."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, target in targets.items():
        tensor = header.tensors[name]
        begin, end = end, end + _published_size(tensor)
        dtype = _AS_THEY_ARE.get(tensor.kind, "F32")
        entries[target.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name, target in targets.items():
        for values in _values(header, header.tensors[name], target):
            yield np.ascontiguousarray(values).data.cast("B")


def _values(header: Header, tensor: StoredTensor, target: Target) -> Iterator[NDArray[Any]]:
    """The values of a tensor, some rows at a time, or all where rows change places."""
    rows = header.raw(tensor)
    step = len(rows) if target.heads else max(1, _CHUNK // tensor.shape[-1])
    for start in range(0, len(rows), step):
        values = _dequantized(header, tensor, rows[start : start + step])
        if target.heads:
            values = _published_order(values.reshape(tensor.shape[0], -1), target.heads)
        yield values


def _dequantized(header: Header, tensor: StoredTensor, rows: NDArray[np.uint8]) -> NDArray[Any]:
    if tensor.kind in _AS_THEY_ARE:
        return rows.view(np.uint32 if tensor.kind == "F32" else np.uint16)  # raw bits
    gguf = library(header.file)
    try:
        with np.errstate(all="ignore"):
            values: NDArray[Any] = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[tensor.kind])
    except NotImplementedError as error:
        raise ModelError(
            f"{header.file}: tensor {tensor.name} is of type {tensor.kind}, which the package gguf cannot dequantize",
            "use a file of another quantization, such as Q8_0 or Q4_K_M",
        ) from error
    return values.astype(np.float32, copy=False)


def _published_order(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of Llama's queries and keys as published: GGUF files have the two halves of each head interleaved."""
    shape = values.shape
    return values.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def _published_size(tensor: StoredTensor) -> int:
    return tensor.size if tensor.kind in _AS_THEY_ARE else 4 * tensor.count


def _save(file: Path, content: Iterator[bytes | memoryview]) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        for chunk in content:
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def _clear(folder: Path) -> None:
    """Removes partly written folders of killed processes."""
    for entry in folder.glob(_PART + "*"):
        with suppress(OSError):
            if time.time() - entry.stat().st_mtime > _STALE_S:
                shutil.rmtree(entry, ignore_errors=True)


def _unwritable(file: Path, error: OSError) -> ModelError:
    problem = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        problem = f"the disk is full ({problem})"
    try:
        folder = str(cache_folder())
    except OSError:
        folder = "the cache"
    return ModelError(
        f"{file} cannot be converted in {folder}: {problem}",
        "set PARDEC_CACHE=/path/to/folder to a folder of your own with enough space",
    )
