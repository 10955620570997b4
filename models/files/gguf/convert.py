"""A GGUF file's config and tokenizer as a folder in the cache, converted once; the weights stay in the file."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..cache_dir import cache_folder, private, require_own
from .contents import Contents, identity, keep
from .header import Header, read_header
from .listing import FOLDER, SOURCE
from .tokenizer import special_ids, tokenizer_files

_FORMAT = 5  # version of the folders; a new number converts files again
_PART = "part-"
_SAMPLE = 4096  # bytes of a tensor at each end by which contents are told apart
_STALE_S = 24 * 3600
_ready: dict[tuple[object, ...], Path] = {}


def converted(file: Path) -> Path:
    """The folder that `file` was converted to; the first call converts it.

    Raises:
        ModelError: it is no GGUF file, is damaged, or holds what is not supported; the cache cannot be written to.
    """
    try:
        key = identity(file)
        if key not in _ready or not (_ready[key] / "config.json").is_file():
            header = read_header(file)
            _ready[key] = _convert(header, keep(key, header))
    except OSError as error:
        raise _unwritable(file, error) from error
    return _ready[key]


def _convert(header: Header, model: Contents) -> Path:
    key = f"{_digest(header)}-{_FORMAT}"
    with private(FOLDER) as folder:
        if not (folder / key).is_dir():
            part = Path(tempfile.mkdtemp(dir=folder, prefix=_PART))
            try:
                _write(header, part, model)
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


def _digest(header: Header) -> str:
    """A name for the content: of the header, and of the first and last bytes of every tensor."""
    first = min((tensor.start for tensor in header.tensors.values()), default=len(header.content))
    digest = hashlib.sha256(header.content[:first])
    for tensor in header.tensors.values():
        end = tensor.start + tensor.size
        digest.update(header.content[tensor.start : min(end, tensor.start + _SAMPLE)])
        digest.update(header.content[max(tensor.start, end - _SAMPLE) : end])
    return digest.hexdigest()[:32]


def _name_source(folder: Path, file: Path) -> None:
    """Records where the file is now, if it was elsewhere when it was converted: `pardec list models` shows it."""
    source = json.loads((folder / SOURCE).read_bytes())
    if source["file"] != os.path.abspath(file):
        handle, part = tempfile.mkstemp(dir=folder, prefix=_PART)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({**source, "file": os.path.abspath(file)}, out)
        os.replace(part, folder / SOURCE)


def _write(header: Header, folder: Path, model: Contents) -> None:
    """The files of a checkpoint folder, on disk before this returns."""
    vocabulary = model.config["vocab_size"]
    positions = header.metadata[f"{header.metadata['general.architecture']}.context_length"]
    special = special_ids(header, vocabulary)
    files = tokenizer_files(header, vocabulary, positions)
    files["config.json"] = json.dumps({**model.config, **special}, indent=2)
    files["generation_config.json"] = json.dumps(special, indent=2)
    files[SOURCE] = json.dumps(_source(header, model))
    for name, text in files.items():
        _save(folder / name, text.encode("utf-8"))


def _source(header: Header, model: Contents) -> dict[str, Any]:
    """The entry that `pardec list models` shows."""
    kinds = Counter[str]()
    for tensor in model.tensors.values():
        kinds[tensor.kind] += tensor.count
    title = header.metadata.get("general.name")
    summary = f"{title if isinstance(title, str) and title else header.file.stem}, {kinds.most_common(1)[0][0]}"
    family, parameters = model.config["model_type"], kinds.total()
    return {"file": os.path.abspath(header.file), "family": family, "summary": summary, "parameters": parameters}


def _save(file: Path, content: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
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
