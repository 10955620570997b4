"""Kernels in C: compiled once, told of where they cannot be, and unseen where something follows the operations."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import pardec
from pardec.models.kernels import compiled, layer_c

CAN = compiled._compiler() is not None and compiled._openmp() is not None
needs_a_compiler = pytest.mark.skipif(not CAN, reason="no C compiler, or no OpenMP")


def fresh(source):
    return compiled.library.__wrapped__(source)


@needs_a_compiler
def test_what_is_compiled_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "own"))
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return 7; }\n")
    assert fresh(source).seven() == 7
    assert [file.suffix for file in (tmp_path / "own" / "kernels").iterdir()] == [".so"]
    monkeypatch.setattr(compiled, "_compile", None)  # it is not compiled again
    assert fresh(source).seven() == 7


@needs_a_compiler
def test_what_changed_is_compiled_again(monkeypatch, tmp_path):
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "own"))
    source = tmp_path / "number.c"
    for number in (7, 8):
        source.write_text(f"int number(void) {{ return {number}; }}\n")
        assert fresh(source).number() == number
    assert len(list((tmp_path / "own" / "kernels").iterdir())) == 2


@needs_a_compiler
def test_what_does_not_compile_is_told(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "own"))
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return seven\n")
    assert fresh(source) is None
    assert "seven.c could not be compiled" in caplog.text
    assert not list((tmp_path / "own" / "kernels").iterdir())


@needs_a_compiler
def test_a_cache_that_cannot_be_written_is_no_end(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "file"))
    assert fresh(layer_c._FILE) is None
    assert "PyTorch does what it would" in caplog.text


def test_a_model_is_loaded_with_its_kernels_compiled(in_c, monkeypatch):
    asked = []
    monkeypatch.setattr(compiled, "library", lambda source: asked.append(source.name))
    pardec.load("tiny-llama", device="cpu", dtype="bfloat16")
    assert not asked
    pardec.load("tiny-llama", device="cpu", dtype="float32")
    assert {"attention.c", "confidence.c", "layer.c", "panels.c"} <= set(asked)


def test_without_a_compiler_there_is_no_kernel(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "_compiler", lambda: None)
    caplog.set_level("INFO")
    assert fresh(layer_c._FILE) is None
    assert "no C compiler" in caplog.text


def test_other_processors_and_forced_versions_take_none(in_c, monkeypatch):
    cpu = torch.device("cpu")
    with torch.no_grad():
        assert layer_c.usable(cpu, torch.float32)
        assert not layer_c.usable(cpu, torch.bfloat16)
        assert not layer_c.usable(torch.device("meta"), torch.float32)
        for forced in ("reference", "triton"):
            monkeypatch.setenv("PARDEC_KERNELS", forced)
            assert not layer_c.usable(cpu, torch.float32)
        monkeypatch.delenv("PARDEC_KERNELS")
        monkeypatch.setattr(compiled, "suited", lambda: False)
        compiled.kernel.cache_clear()
        assert not layer_c.usable(cpu, torch.float32)
    with torch.enable_grad():
        assert not layer_c.usable(cpu, torch.float32)


def test_what_follows_the_operations_sees_all_of_them(in_c):
    """A counter of operations finds as many as without kernels that it could not see."""
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
