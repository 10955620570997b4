"""Carries large files to a GPU in parcels: SmolLM2's weights, the training's texts and state, and Python packages.

`pack` cuts files into parcels, `build/gpu/parcel-1` and so on, each small enough to travel with a slim working tree.
On the other side `collect`, which every run of the queue begins with, moves the pieces of all parcels that are there to
`build/gpu/inputs`, joins the files whose pieces have all come, and unpacks wheels to `build/gpu/packages`. Parcels may
come one after another.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / "benchmarks" / "gpu" / "state"
PACKAGES = ("diffusers", "importlib_metadata")  # what the image tests need and a machine with PyTorch may lack


def pack(gguf: Path, work: Path, most: int) -> int:
    """Writes the parcels of at most `most` bytes; prints their contents."""
    from gpu_runs.smollm2 import carried

    if not gguf.is_file():
        print(
            f"error: {gguf} is no file; scripts/get_smollm2 prints the path of the one that is meant", file=sys.stderr
        )
        return 2
    absent = [name for name in _committed() if not (ROOT / name).is_file()]
    if absent:
        print(f"error: {absent[0]} is committed and not in this sparse working tree", file=sys.stderr)
        print("bring it back first: git sparse-checkout disable", file=sys.stderr)
        return 2
    whole = {"smollm2.bin": carried(gguf)}
    whole |= {file.name: file.read_bytes() for file in sorted(STATE.glob("*")) if file.is_file()}
    whole |= _wheels(PACKAGES)
    for old in work.glob("parcel-*"):
        shutil.rmtree(old)
    number, room = 1, most
    for name, content in whole.items():
        pieces: list[tuple[int, bytes]] = []
        at = 0
        while at < len(content):
            if room < 2**16:
                number, room = number + 1, most
            pieces.append((number, content[at : at + room]))
            at += len(pieces[-1][1])
            room -= len(pieces[-1][1])
        for index, (parcel, piece) in enumerate(pieces, 1):
            folder = work / f"parcel-{parcel}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.{index}of{len(pieces)}").write_bytes(piece)
    for folder in sorted(work.glob("parcel-*")):
        names = ", ".join(sorted(file.name for file in folder.iterdir()))
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB: {names}")
    return 0


def _wheels(packages: tuple[str, ...]) -> dict[str, bytes]:
    """The wheels of these packages in the versions that are installed here, by their names."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = [f"{name}=={version(name)}" for name in packages]
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
        subprocess.run([*command, *wanted], check=True)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def _committed() -> list[str]:
    """The files of the state that git has, by their paths from the root."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "benchmarks/gpu/state"], capture_output=True, text=True
    )
    return [name for name in listed.stdout.split("\0") if name]


def collect(work: Path) -> None:
    """Moves the pieces of the parcels to the inputs, joins the files that are complete, and unpacks the wheels."""
    inputs = work / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for piece in sorted(work.glob("parcel-*/*of*")):
        shutil.move(piece, inputs / piece.name)
    for first in inputs.glob("*.1of*"):
        stem, count = first.name.rsplit(".1of", 1)
        pieces = [inputs / f"{stem}.{index}of{count}" for index in range(1, int(count) + 1)]
        if all(piece.is_file() for piece in pieces):
            part = inputs / f"{stem}.part"
            with part.open("wb") as file:
                for piece in pieces:
                    file.write(piece.read_bytes())
            part.replace(inputs / stem)
            for piece in pieces:
                piece.unlink()
    for wheel in inputs.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "packages")


def missing(inputs: Path, name: str) -> str | None:
    """Why a carried file cannot be read yet, or None."""
    if (inputs / name).is_file():
        return None
    pieces = list(inputs.glob(f"{name}.*of*"))
    if not pieces:
        return f"{name} was not carried: see scripts/gpu_queue --pack"
    return f"{len(pieces)} of {pieces[0].name.rsplit('of', 1)[1]} pieces of {name} have come"
