"""Kernels in C: compiled once; a warning where they cannot be; not used while operations are traced."""

from __future__ import annotations

import multiprocessing
import os
import pwd
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import pardec
from pardec.models.kernels import cpu
from pardec.models.kernels.cpu import compiler
from pardec.models.kernels.cpu import layers as layers_c
from pardec.models.kernels.cpu import library as compiled
from pardec.samplers import ops as sampler_ops
from tests.models.compiling import fresh, own_cache, seven_in_c
from tests.models.loading.test_cache_dir import give_away, mode

CAN = compiler.command() is not None and compiled._openmp() is not None
needs_a_compiler = pytest.mark.skipif(not CAN, reason="no C compiler, or no OpenMP")
SOURCES = [file for package in (cpu, sampler_ops) for file in sorted(Path(package.__path__[0]).glob("*.c"))]


@pytest.fixture
def place(monkeypatch, tmp_path):
    return own_cache(monkeypatch, tmp_path)


@pytest.fixture
def seven(tmp_path):
    return seven_in_c(tmp_path)


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A library whose function returns 8, and which writes a file (path in $RAN) when it is loaded."""
    source = tmp_path_factory.mktemp("evil") / "evil.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        '__attribute__((constructor)) static void run(void) { fclose(fopen(getenv("RAN"), "w")); }\n'
        "int seven(void) { return 8; }\n"
    )
    return compiler.build(source, compiler.command(), compiled._openmp())


@pytest.fixture
def planted(evil, monkeypatch, tmp_path):
    """That library with a valid checksum; if it is loaded, the file "ran" exists."""
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    return compiled._sealed(evil)


def named(place, source):
    """The path of the compiled library of a source."""
    headers = sorted(Path(compiled.__file__).parent.glob("*.h"))
    files = {file.name: file.read_bytes() for file in (source, *headers)}
    return place / f"{source.stem}-{compiled._key(files, compiler.command(), compiled._openmp())}.so"


@needs_a_compiler
def test_what_is_compiled_is_kept(monkeypatch, seven, place):
    assert fresh(seven).seven() == 7
    assert [file.suffix for file in place.iterdir()] == [".so"]
    monkeypatch.setattr(compiler, "build", None)  # it is not compiled again
    assert fresh(seven).seven() == 7


@needs_a_compiler
def test_what_is_replaced_while_it_is_compiled_is_not_kept_as_the_other(monkeypatch, seven, place):
    """An update of the package may replace a source between its reading and its compilation."""
    build, before = compiler.build, seven.read_bytes()

    def updated(source, *others):
        seven.write_text("int seven(void) { return 8; }\n")
        return build(source, *others)

    monkeypatch.setattr(compiler, "build", updated)
    assert fresh(seven).seven() == 7
    assert fresh(seven).seven() == 8
    seven.write_bytes(before)
    assert fresh(seven).seven() == 7


@needs_a_compiler
def test_what_changed_is_compiled_again(place, tmp_path):
    source = tmp_path / "number.c"
    for number in (7, 8):
        source.write_text(f"int number(void) {{ return {number}; }}\n")
        assert fresh(source).number() == number
    assert len(list(place.iterdir())) == 2


@needs_a_compiler
def test_what_does_not_compile_is_told(seven, place, caplog):
    seven.write_text("int seven(void) { return seven\n")
    assert fresh(seven) is None
    assert "seven.c could not be compiled" in caplog.text
    assert not list(place.iterdir())


@needs_a_compiler
@pytest.mark.parametrize("why", ["a file", "relative", "no home", "full"])
def test_without_a_cache_each_process_compiles_its_own(monkeypatch, seven, place, tmp_path, caplog, why):
    monkeypatch.chdir(tmp_path)
    if why == "a file":
        place.parent.write_text("")
    elif why == "relative":
        monkeypatch.setenv("PARDEC_CACHE", "own")
    elif why == "no home":
        for name in ("PARDEC_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    else:

        def full(number):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
    assert fresh(seven).seven() == 7
    assert fresh(seven).seven() == 7
    said = {
        "a file": "of the wrong file type",
        "relative": "not an absolute path",
        "no home": "no home",
        "full": "No space left",
    }
    assert len(caplog.records) == 1
    assert said[why] in caplog.text
    assert not [*tmp_path.rglob("*.so"), *tmp_path.rglob("~")]


@needs_a_compiler
@pytest.mark.parametrize("how", ["another user's", "for all", "a link"])
@pytest.mark.parametrize("which", ["folder", "below", "file"])
@pytest.mark.covers(1)
def test_what_another_user_planted_is_not_loaded(monkeypatch, seven, place, tmp_path, planted, caplog, which, how):
    file = named(place, seven)
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    file.write_bytes(planted)
    file.chmod(0o600)
    path = {"folder": place.parent, "below": place, "file": file}[which]
    if how == "another user's":
        give_away(path, monkeypatch)
    elif how == "for all":
        path.chmod(mode(path) | 0o002)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    assert fresh(seven).seven() == 7
    assert not (tmp_path / "ran").exists()
    if which == "file" and os.geteuid() == 0:
        assert not caplog.records
        assert compiled._whole(file)
    else:
        assert len(caplog.records) == 1
        assert next(tmp_path.rglob(file.name)).read_bytes() == planted


@needs_a_compiler
@pytest.mark.parametrize("damage", ["cut", "empty", "a bit", "longer", "unsealed", "a folder"])
def test_what_is_damaged_is_compiled_again(seven, place, damage):
    """Loading a truncated library would kill the process at the first read after its end."""
    content = compiler.build(seven, compiler.command(), compiled._openmp())
    file = named(place, seven)
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    whole = compiled._sealed(content)
    damaged = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "a bit": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
        "longer": whole + b"\0",
        "unsealed": content,
    }
    if damage == "a folder":
        file.mkdir()
    else:
        file.write_bytes(damaged[damage])
        file.chmod(0o600)
    assert fresh(seven).seven() == 7
    if damage != "a folder":
        assert compiled._whole(file)
        assert mode(file) == 0o600


@needs_a_compiler
def test_builders_do_not_disturb_each_other(seven, place):
    several = multiprocessing.get_context("fork")
    start, said = several.Barrier(3), several.SimpleQueue()

    def one():
        start.wait(20)
        said.put(fresh(seven).seven())

    builders = [several.Process(target=one, daemon=True) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(30)
    assert [said.get() for builder in builders if builder.exitcode == 0] == [7, 7, 7]
    assert [file.name for file in place.iterdir()] == [named(place, seven).name]
    assert compiled._whole(named(place, seven))


@pytest.fixture
def loaded(in_c, monkeypatch, request):
    """`pardec.load` in a process without kernels in memory; compilers reuse earlier outputs."""
    kept = Path(os.environ["PARDEC_CACHE"], "kernels")
    compiled.library.cache_clear()  # a test with a cache of its own may have compiled some
    built = {source.name: named(kept, source).read_bytes() for source in SOURCES if compiled.library(source)}
    monkeypatch.setattr(compiler, "build", lambda source, *rest: built[source.name][: -compiled._SEAL])
    request.getfixturevalue("place")

    def load():
        compiled.library.cache_clear()
        compiled.kernel.cache_clear()
        compiled.kernel_on.cache_clear()
        return pardec.load("tiny-llama", device="cpu", dtype="float32")

    yield load
    compiled.library.cache_clear()


@pytest.mark.parametrize("how", ["another user's", "for all", "a link", "damaged", "umask", "no home"])
def test_a_model_is_loaded_by_a_victim_of_another_user(planted, loaded, monkeypatch, place, tmp_path, how):
    monkeypatch.chdir(tmp_path)
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    files = [named(place, source) for source in SOURCES]
    for file in files:
        file.write_bytes(planted[:-5000] if how == "damaged" else planted)
        file.chmod(0o600)
    before = os.umask(0)
    try:
        if how == "another user's":
            give_away(place.parent, monkeypatch)
        elif how == "for all":
            place.chmod(0o777)
        elif how == "a link":
            place.parent.rename(tmp_path / "elsewhere")
            place.parent.symlink_to(tmp_path / "elsewhere")
        elif how == "umask":  # what a careless process made under it
            for file in files:
                file.chmod(0o666)
        elif how == "no home":
            (tmp_path / "~" / ".cache").mkdir(parents=True)
            place.parent.rename(tmp_path / "~" / ".cache" / "pardec")
            for name in ("PARDEC_CACHE", "XDG_CACHE_HOME", "HOME"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
        model = loaded()
    finally:
        os.umask(before)
    assert not (tmp_path / "ran").exists()
    with torch.no_grad():
        assert layers_c.usable(torch.device("cpu"), torch.float32)
    assert model.generate("Tom has 12 apples.", max_new_tokens=2).text
    for file in files:
        if how in ("damaged", "umask"):
            assert compiled._whole(file)
            assert mode(file) == 0o600


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_loaded_with_its_kernels_compiled(in_c, monkeypatch, dtype):
    asked = []
    monkeypatch.setattr(compiled, "library", lambda source: asked.append(source.name))
    pardec.load("tiny-llama", device="cpu", dtype="float16")
    assert not asked
    pardec.load("tiny-llama", device="cpu", dtype=dtype)
    assert {"attention.c", "confidence.c", "layer.c", "panels.c"} <= set(asked)


def test_without_a_compiler_there_is_no_kernel(monkeypatch, caplog):
    monkeypatch.setattr(compiler, "command", lambda: None)
    caplog.set_level("INFO")
    assert fresh(layers_c._OPERATIONS) is None
    assert "no C compiler" in caplog.text


def test_other_processors_and_forced_versions_take_none(in_c, monkeypatch):
    cpu = torch.device("cpu")
    with torch.no_grad():
        assert layers_c.usable(cpu, torch.float32)
        assert layers_c.usable(cpu, torch.bfloat16)
        assert not layers_c.usable(cpu, torch.float16)
        assert not layers_c.usable(torch.device("meta"), torch.float32)
        for forced in ("reference", "triton"):
            monkeypatch.setenv("PARDEC_KERNELS", forced)
            assert not layers_c.usable(cpu, torch.float32)
        monkeypatch.delenv("PARDEC_KERNELS")
        monkeypatch.setattr(compiled, "supported", lambda: False)
        compiled.kernel.cache_clear()
        compiled.kernel_on.cache_clear()
        assert not layers_c.usable(cpu, torch.float32)
    with torch.enable_grad():
        assert not layers_c.usable(cpu, torch.float32)


def test_what_follows_the_operations_sees_all_of_them(in_c):
    """A mode that counts operations finds as many as without C kernels, which it could not count."""
    model = pardec.load("tiny-dream", device="cpu", dtype="float32")

    def counted():
        with FlopCounterMode(display=False) as counter:
            model.generate("Tom has 12 apples.", sampler="sequential@dual", max_new_tokens=4)
        return counter.get_total_flops()

    found = counted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARDEC_KERNELS", "reference")
        assert counted() == found > 0


@pytest.mark.parametrize(
    ("name", "sampler"),
    [("tiny-dream", "sequential@dual"), ("tiny-dream", "threshold@none"), ("tiny-llama", "lookup:k=7")],
)
def test_a_model_says_the_same_by_them(in_c, monkeypatch, name, sampler):
    model = pardec.load(name, device="cpu", dtype="float32")
    prompts = ["Tom has 12 apples. He buys 7 more.", "Sara has 3 cups."]

    def said():
        return model.generate(prompts, sampler=sampler, max_new_tokens=24).text

    found = said()
    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    assert said() == found
