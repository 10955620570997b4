"""Kernels in C on 64-bit ARM, by a cross compiler and an emulator, and here, against sums in double precision."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pardec.models.kernels.cpu import library
from pardec.samplers.ops import confidence_c

HERE = Path(__file__).parent
FOLDER = Path(library.__file__).parent
SOURCES = [HERE / "check_kernels.c", *(FOLDER / f"{name}.c" for name in ("attention", "int8", "layer", "panels"))]
SOURCES.append(Path(confidence_c.__file__).with_name("confidence.c"))
ARM = "aarch64-linux-gnu-gcc", "qemu-aarch64", "-cpu", "max"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "emulator", "processor"),
    [("gcc", (), "native"), (ARM[0], ARM[1:], "armv8-a"), (ARM[0], ARM[1:], "armv8.2-a+dotprod")],
)
def test_kernels_agree_with_their_definitions(
    tmp_path: Path, compiler: str, emulator: tuple[str, ...], processor: str
) -> None:
    missing = [name for name in (compiler, *emulator[:1]) if shutil.which(name) is None]
    if missing or (processor == "native" and not library.supported()):
        pytest.skip(f"no {missing or 'AVX2'}")
    options = ["-O3", f"-march={processor}", "-fopenmp", "-static", *map(str, SOURCES), "-lm"]
    subprocess.run([compiler, *options, "-o", str(tmp_path / "check")], check=True)
    run = subprocess.run([*emulator, str(tmp_path / "check")], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
