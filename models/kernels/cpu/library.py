"""Kernels in C, compiled at first use and kept in the user's cache.

They are compiled for this processor and share PyTorch's OpenMP threads. Where there is no compiler, or it fails,
PyTorch does the work. A library is loaded if only this user can have written it and the checksum at its end is right;
where no such file can be kept, each process compiles its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...errors import one_line
from ...files import cache_dir
from ..variable import forced
from . import compiler

_AGAIN = 3600  # seconds before a compiler that took too long is tried again
_SEAL = hashlib.sha256().digest_size
_OPENMP = re.compile(r"/\S*/lib(?:gomp|iomp5|omp)\S*\.so\S*")

SPREAD = 2**20  # with fewer multiplications, threads cost more than they save

log = logging.getLogger(__name__)

POINTER, STEP, COUNT = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
TYPES = {torch.float32: 0, torch.bfloat16: 1}  # their numbers in vectors.h


def allowed() -> bool:
    """Whether kernels in C may be chosen: PARDEC_KERNELS may force others."""
    return forced() == "auto"


def prepare(*folders: Path) -> None:
    """Compiles the C files in these folders."""
    if allowed() and supported():
        for source in sorted(file for folder in folders for file in folder.glob("*.c")):
            library(source)


def is_traced() -> bool:
    """Whether a dispatch mode follows PyTorch's operations, to trace or count them: it would not see these kernels."""
    return torch._C._len_torch_dispatch_stack() > 0


def threads(work: int) -> int:
    """The number of threads for `work` multiplications."""
    return torch.get_num_threads() if work >= SPREAD else 1


@cache
def kernel(source: Path, name: str, arguments: tuple[Any, ...]) -> Any:
    """The function `name` of a C file; None where it is not compiled or this processor is not supported."""
    return kernel_on(supported(), source, name, arguments)


@cache
def kernel_on(able: bool, source: Path, name: str, arguments: tuple[Any, ...]) -> Any:
    """`kernel` for a C file with its own processor requirement; `able`: whether this processor meets it."""
    functions = library(source) if able else None
    if functions is None:
        return None
    run = getattr(functions, name)
    run.argtypes, run.restype = arguments, COUNT
    return run


def supported() -> bool:
    """Whether the processor has AVX-512, or AVX2 with FMA. Never decided by timing: results would then vary by run.

    The kernels compile for 64-bit ARM as well, where it has not been measured whether they are faster than PyTorch.
    """
    return torch.backends.cpu.get_cpu_capability() in ("AVX512", "AVX2")


def is_arm() -> bool:
    """Whether the processor is a 64-bit ARM."""
    return platform.machine() in ("aarch64", "arm64")


@cache
def has_bfloat16() -> bool:
    """Whether this processor has instructions that multiply bfloat16."""
    return has_tiles() or bool(_capabilities().get("avx512_bf16"))


@cache
def has_tiles() -> bool:
    """Whether this processor has AMX: PyTorch's matmuls of many rows of bfloat16 are then faster than pardec's."""
    return bool(_capabilities().get("amx_bf16"))


def _capabilities() -> dict[str, Any]:
    about: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return about


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """The functions of a C file, compiled now or before; None, with a line in the log, where it cannot be compiled."""
    command, openmp = compiler.command(), _openmp()
    if command is None or openmp is None:
        log.info("%s is not compiled: there is no %s", source.name, "OpenMP" if command else "C compiler")
        return None
    try:
        return _library(source, command, openmp)
    except compiler.TookTooLong as error:
        _warn_too_slow(str(error))
    except (OSError, compiler.CompilerError) as error:
        log.warning("%s could not be compiled, so PyTorch is used instead: %s", source.name, one_line(error))
    return None


@cache
def _warn_too_slow(reason: str) -> None:
    """Logs once that the compiler takes too long, which holds for every file."""
    log.warning("kernels in C could not be compiled, so PyTorch is used instead: %s", reason)


def _library(source: Path, command: tuple[str, ...], openmp: str) -> ctypes.CDLL:
    files = {file.name: file.read_bytes() for file in (source, *sorted(Path(__file__).parent.glob("*.h")))}
    name = f"{source.stem}-{_key(files, command, openmp)}.so"
    try:
        with cache_dir.private("kernels") as folder:
            if not _whole(folder / name):
                cache_dir.write(folder / name, _sealed(_build(source.name, files, command, openmp, folder)))
            return ctypes.CDLL(str(folder / name))
    except OSError as error:
        cache_dir.warn_uncached(error)
    with tempfile.TemporaryDirectory(prefix="pardec-") as folder_:  # a library stays loaded after its file is deleted
        file = Path(folder_) / name
        file.write_bytes(_compiled(source.name, files, command, openmp))
        return ctypes.CDLL(str(file))


def _build(source: str, files: dict[str, bytes], command: tuple[str, ...], openmp: str, folder: Path) -> bytes:
    """Compiles a library. A compiler that took too long is not tried again for an hour, by any process."""
    marker = folder / f"too-long-{_digest(' '.join(command).encode())}"
    with suppress(OSError):
        if 0 <= time.time() - cache_dir.require_own(marker).stat().st_mtime < _AGAIN:
            shown = cache_dir.cache_folder() / "kernels" / marker.name  # `marker` begins with a number of this process
            raise compiler.TookTooLong(f"{command[0]} took too long within the last hour; remove {shown} to try again")
    try:
        return _compiled(source, files, command, openmp)
    except compiler.TookTooLong:
        cache_dir.write(marker, b"")
        raise


def _compiled(source: str, files: dict[str, bytes], command: tuple[str, ...], openmp: str) -> bytes:
    """The library of the file `source` among `files`, as they were read: an update may replace those on disk."""
    with tempfile.TemporaryDirectory(prefix="pardec-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return compiler.build(Path(folder) / source, command, openmp)


def _sealed(content: bytes) -> bytes:
    """The library with its checksum appended; loaders ignore it."""
    return content + hashlib.sha256(content).digest()


def _whole(file: Path) -> bool:
    """Whether only this user can write the file, and it is whole: loading a truncated one would kill the process."""
    try:
        content = cache_dir.require_own(file).read_bytes()
    except OSError:
        return False
    return _sealed(content[:-_SEAL]) == content


def _openmp() -> str | None:
    """The OpenMP library that PyTorch has loaded: threads of a second one would compete with the first."""
    try:
        files = _OPENMP.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return None
    return next((file for file in files if "/torch/" in file), files[0] if files else None)


def _key(files: dict[str, bytes], command: tuple[str, ...], openmp: str) -> str:
    """A name for source, compiler and processor: several machines may share a home folder."""
    about = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    features = "\n".join(line for line in about.splitlines() if line.startswith(("model name", "flags")))
    status = os.stat(command[0])  # not its --version: it might hang
    by = *command, str(status.st_size), str(status.st_mtime_ns)
    words = (platform.machine(), *by, *compiler.FLAGS, openmp, features)
    return _digest(b"\0".join([*files.values(), *map(os.fsencode, words)]))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
