"""Kernels in C, compiled once where they run and kept in the user's cache.

They are for the processor at hand and share PyTorch's OpenMP threads. Where there is no compiler, or it fails, there is
no such kernel, and what it would do is done by PyTorch.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..saved import cache_folder
from .choice import VARIABLE

_FLAGS = ("-O3", "-march=native", "-fPIC", "-fopenmp")
_SECONDS = 120  # that a compiler may take
_OPENMP = re.compile(r"/\S*/lib(?:gomp|iomp5|omp)\S*\.so\S*")

SPREAD = 2**20  # multiplications, below which threads cost more than they save

log = logging.getLogger(__name__)

POINTER, STEP, COUNT = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int


def wanted() -> bool:
    """Whether kernels in C may be chosen: not where the variable PARDEC_KERNELS forces others."""
    return os.environ.get(VARIABLE, "auto") in ("auto", "")


def prepare(folder: Path) -> None:
    """Compiles what lies there in C, so that the first step of a decode need not wait for it."""
    if wanted() and suited():
        for source in sorted(folder.glob("*.c")):
            library(source)


def watched() -> bool:
    """Whether something follows PyTorch's operations, to record or to count them: it would not see these kernels."""
    return torch._C._len_torch_dispatch_stack() > 0


def threads(work: int) -> int:
    """Threads for so many multiplications."""
    return torch.get_num_threads() if work >= SPREAD else 1


@cache
def kernel(source: Path, name: str, arguments: tuple[Any, ...]) -> Any:
    """The function `name` of a C file; None where there is none, or it has not shown to be faster."""
    found = library(source) if suited() else None
    if found is None:
        return None
    run = getattr(found, name)
    run.argtypes, run.restype = arguments, COUNT
    return run


def suited() -> bool:
    """On Intel's processors with AVX-512: the name decides and no measurement, so that a machine rounds one way."""
    about: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "Intel" in str(about.get("cpu_name")) and torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """The functions of a C file, compiled now or before; None where that cannot be, which the log tells."""
    compiler, openmp = _compiler(), _openmp()
    if compiler is None or openmp is None:
        log.info("%s is not compiled: there is no %s", source.name, "OpenMP" if compiler else "C compiler")
        return None
    try:
        built = cache_folder() / "kernels" / f"{source.stem}-{_key(source, compiler, openmp)}.so"
        if not built.is_file():
            _compile(source, compiler, openmp, built)
        return ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        log.warning("%s could not be compiled, PyTorch does what it would: %s", source.name, said)
        return None


def _compiler() -> str | None:
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _openmp() -> str | None:
    """The file of the OpenMP threads that PyTorch has loaded: a second kind of them would wait against the first."""
    try:
        found = _OPENMP.findall(Path("/proc/self/maps").read_text(encoding="utf-8"))
    except OSError:
        return None
    return next((file for file in found if "/torch/" in file), found[0] if found else None)


def _key(source: Path, compiler: str, openmp: str) -> str:
    """Names what was compiled, by what and for which processor: a home folder may be that of several machines."""
    version = _version(compiler)
    about = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    features = "\n".join(line for line in about.splitlines() if line.startswith(("model name", "flags")))
    files = (source, *sorted(Path(__file__).parent.glob("*.h")))  # what it may include
    parts = (*(file.read_bytes() for file in files), version, *(text.encode() for text in (*_FLAGS, openmp, features)))
    return hashlib.sha256(platform.machine().encode() + b"\0".join(parts)).hexdigest()[:16]


@cache
def _version(compiler: str) -> bytes:
    return subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=_SECONDS).stdout


def _compile(source: Path, compiler: str, openmp: str, built: Path) -> None:
    """In two steps, so that the linker takes PyTorch's OpenMP and not the compiler's own."""
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        part, whole = Path(folder) / "part.o", Path(folder) / "whole.so"
        for command in (
            [*_FLAGS, "-c", str(source), "-o", str(part)],
            ["-shared", str(part), openmp, "-lm", "-o", str(whole)],
        ):
            subprocess.run([compiler, *command], capture_output=True, text=True, check=True, timeout=_SECONDS)
        whole.replace(built)
