"""Kernels in C on 64-bit ARM, by a cross compiler and an emulator, on AVX-512, by SIMDe, and here.

Each is compared with sums in double precision. SIMDe computes the instructions of AVX-512 without it.
"""

from __future__ import annotations

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch

from pardec.models.kernels.cpu import blocks, library
from pardec.samplers.ops import confidence
from tests.models.kernels.test_blocks import COLUMNS, ROWS, rounded, weight

HERE = Path(__file__).parent
FOLDER = Path(library.__file__).parent
SOURCES = [HERE / "check_kernels.c", *(FOLDER / f"{name}.c" for name in ("attention", "int8", "layer", "panels"))]
SOURCES.append(Path(confidence.__file__).with_suffix(".c"))
ARM = "aarch64-linux-gnu-gcc", ("qemu-aarch64", "-cpu", "max")
ON_ARM = [(*ARM, ("-march=armv8-a",)), (*ARM, ("-march=armv8.2-a+dotprod",))]
SIMDE = Path("/usr/include/simde/x86/avx512.h")
AVX512 = "-mavx2", "-mfma", "-mf16c", "-flax-vector-conversions", "-include", str(HERE / "avx512_by_simde.h")


def skip_without(compiler: str, emulator: tuple[str, ...], options: tuple[str, ...]) -> None:
    missing = [name for name in (compiler, *emulator[:1]) if shutil.which(name) is None]
    if missing or not library.supported() or (options == AVX512 and not SIMDE.is_file()):
        pytest.skip(f"no {missing or 'AVX2 or SIMDe'}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "emulator", "options"), [("gcc", (), ("-march=native",)), ("gcc", (), AVX512), *ON_ARM]
)
def test_kernels_agree_with_their_definitions(
    tmp_path: Path, compiler: str, emulator: tuple[str, ...], options: tuple[str, ...]
) -> None:
    skip_without(compiler, emulator, options)
    command = [compiler, "-O3", "-fopenmp", "-static", *options, f"-I{FOLDER}", *map(str, SOURCES), "-lm"]
    subprocess.run([*command, "-o", str(tmp_path / "check")], check=True)
    run = subprocess.run([*emulator, str(tmp_path / "check")], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "emulator", "options"), [("gcc", (), AVX512), *ON_ARM])
def test_packed_weights_are_multiplied_alike(
    tmp_path: Path, compiler: str, emulator: tuple[str, ...], options: tuple[str, ...]
) -> None:
    skip_without(compiler, emulator, options)
    sources = [str(HERE / "run_blocks.c"), str(FOLDER / "blocks.c"), "-lm"]
    subprocess.run(
        [compiler, "-O2", "-fopenmp", "-static", *options, *sources, "-o", str(tmp_path / "run")], check=True
    )
    x, files = torch.randn(9, COLUMNS), [tmp_path / name for name in ("panels", "x", "out")]
    files[1].write_bytes(x.numpy().tobytes())
    for kind, eight in product(blocks.TYPES, (False, True)):
        own = weight(kind, "int8" if eight else "float32")
        files[0].write_bytes(own.packed[0].numpy().tobytes())
        numbers = blocks.TYPES[kind].number, int(eight), len(x), ROWS, COLUMNS
        subprocess.run([*emulator, str(tmp_path / "run"), *map(str, (*numbers, *files))], check=True)
        out = torch.frombuffer(bytearray(files[2].read_bytes()), dtype=torch.float32).view(len(x), ROWS)
        exact = (rounded(x) if eight else x.double()) @ own.dense.double().T
        assert (out - exact).norm() < 1e-5 * exact.norm(), kind
