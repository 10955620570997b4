"""From a name to a draft module: find its files, recognise the kind, read the weights that fit the target."""

from __future__ import annotations

import os
import pkgutil
import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ModelError, listed
from ..files.configs import check_config, reading
from ..files.quantized import SCALES, whole_weights
from ..files.sources import DRAFT_FILES, local_drafter, locate, read_json
from ..files.weights import inspect, weight_files
from ..kernels.cpu import int8
from ..kernels.cpu.blocks import BlockWeight
from ..model import LanguageModel
from .contracts import KINDS, DraftFiles, DraftKind, DraftModule

_ROUNDED = int8.Int8Weight, BlockWeight
_QUANTIZED = re.compile(rf"{SCALES.pattern}|.*\.qweight")  # GPTQ and AWQ have qweight


def load_draft_module(
    name_or_path: str | os.PathLike[str],
    target: LanguageModel,
    *,
    kind: str | None = None,
    revision: str | None = None,
    offline: bool = False,
    quantize: str | None = None,
    **options: Any,
) -> DraftModule:
    """The draft module of an embedded name, a folder or a hub id, on the target's device and in its dtype.

    With `quantize` "int8" or "int4" its matmuls are made in 8 bits, with states rounded to 8 bits and weights to 8 or
    4, on a CPU alone.
    Raises ModelError if the files are of another `kind`, or of none that is known, or do not fit the target, and where
    such matmuls cannot be made.
    """
    files = replace(find(name_or_path, revision=revision, offline=offline), quantize=quantize)
    check_config(files.config, f"{files.name}: {files.source}", files.published)
    with reading(files.name):
        match = recognise(files)
    if kind is not None and match.name != kind:
        raise ModelError(
            f"{files.name} is a draft module of kind {match.name}, not {kind}", f"write {match.name}:name=..."
        )
    if quantize is not None:
        _check_quantize(files, target)
    with reading(files.name):
        module = match.load(files, target, **options)
    if quantize is not None and not any(isinstance(weight, _ROUNDED) for weight in module.parameters()):
        raise ModelError(f"{files.name} has no matrix that can be multiplied in 8 bits", "leave quantize out")
    return module.to(target.device).eval()


def _check_quantize(files: DraftFiles, target: LanguageModel) -> None:
    if files.quantize not in ("int8", "int4"):
        raise ModelError(
            f"{files.name}: quantize={files.quantize!r} is unknown for draft modules", "write quantize=int8 or int4"
        )
    if target.device.type != "cpu" or not int8.runs():
        why = (
            "and the kernel is not enabled or not compiled"
            if target.device.type == "cpu"
            else f"not on {target.device}"
        )
        raise ModelError(
            f"{files.name} cannot draft in 8 bits: such matmuls run on processors with AVX512-VNNI or AVX2, {why}",
            "leave the parameter quantize out",
        )


def own_folder(target: LanguageModel, kind: str) -> Path:
    """The folder of a target whose own files hold a draft module of this `kind`.

    Raises ModelError if they hold none, or if it was loaded from a single file.
    """
    import_kinds()
    folder = target.path
    if folder is not None and folder.is_dir():
        files = find(folder)
        if KINDS[kind].matches(files.config, files.published):
            return folder
    raise ModelError(
        f"the files of {target.name} have no draft layer of kind {kind}",
        f"name one that was trained for it: {kind}:name=...; quantized copies and GGUF files often leave it out",
    )


def kind_named(name: str) -> DraftKind | None:
    """The kind of this name, which is also its drafter's name; None if there is none."""
    import_kinds()
    return KINDS.get(name)


def find(name_or_path: str | os.PathLike[str], *, revision: str | None = None, offline: bool = False) -> DraftFiles:
    """The config and the tensors' names and shapes; no weights are read."""
    source = local_drafter(name_or_path) or locate(name_or_path, revision=revision, offline=offline)
    name, folder = source.name, source.folder
    file = "config.json"
    if not (config := read_json(folder / file)):
        config = read_json(folder / (file := "adapter_config.json"), required=True)
    published = inspect(_weights(folder))
    if (quantized := config.get("quantization_config")) and any(_QUANTIZED.fullmatch(each) for each in published):
        published = whole_weights(name, quantized, published)
    return DraftFiles(name, folder, config, published, source=file)


def recognise(files: DraftFiles) -> DraftKind:
    """The kind of module, decided by its tensors first. Raises ModelError, listing the tensors, if there is none."""
    import_kinds()
    _refuse_parallel_eagle(files)
    for kind in KINDS.values():
        if kind.matches(files.config, files.published):
            return kind
    keys = listed(sorted(files.published)[:12])
    raise ModelError(
        f"{files.name} is no known kind of draft module: its tensors are {keys}", f"known kinds: {listed(KINDS)}"
    )


def _refuse_parallel_eagle(files: DraftFiles) -> None:
    """Raises ModelError for a P-EAGLE, which has EAGLE-3's tensors but drafts in another way, so would draft badly."""
    names = {files.config.get("speculators_model_type"), *(files.config.get("architectures") or ())}
    if "mask_hidden" in files.published or names & {"peagle", "PEagleDraftModel", "PEagleSpeculator"}:
        raise ModelError(
            f"{files.name} is a P-EAGLE, which is not supported",
            "it drafts several positions in one forward, which is not built: use an EAGLE-3",
        )


@cache
def import_kinds() -> None:
    """Imports every module of this folder, each of which registers its kind."""
    for entry in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f".{entry.name}", __package__)


def _weights(folder: Path) -> list[Path]:
    own = next(([folder / name] for name in DRAFT_FILES if (folder / name).is_file()), None)
    return own or weight_files(folder)
