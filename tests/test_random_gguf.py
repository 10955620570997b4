"""scripts/random_gguf.py writes files that load, in every type, tensor by tensor."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

import pardec
from pardec.models.files.gguf.architectures import ARCHITECTURES
from tests.script_modules import script_module

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "random_gguf.py"


random_gguf = script_module("scripts/random_gguf.py")
TINY = random_gguf.SHAPES["tiny"]


@pytest.mark.parametrize("kind", random_gguf.TYPES)
def test_weights_have_the_type_and_a_sane_size(tmp_path: Path, kind: str) -> None:
    random_gguf.write(tmp_path / "toy.gguf", TINY, kind)
    kinds = set()
    for tensor in gguf.GGUFReader(tmp_path / "toy.gguf").tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) == 1:
            assert tensor.tensor_type.name == "F32"
            assert abs(values.mean() - 1) < 0.05
            continue
        kinds.add(tensor.tensor_type.name)
        assert np.isfinite(values).all()
        assert abs(values.mean()) < 0.001
        assert 0.015 < values.std() < 0.025
    assert kinds == ({"Q4_K", "Q6_K"} if kind == "Q4_K_M" else {kind})


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_file_of_each_family_loads_and_decodes(tmp_path: Path, family: str) -> None:
    tied = family == "llama"
    random_gguf.write(tmp_path / "toy.gguf", replace(TINY, family=family, kv_heads=2, tied=tied), "Q4_0", seed=1)
    model = pardec.load(tmp_path / "toy.gguf", device="cpu")
    assert model.language_model.decoding_config.masked == (not ARCHITECTURES[family].causal)
    [ids] = model.tokenizer(["abcd" * 8])["input_ids"]
    assert len(ids) == 32  # a byte is a token
    result = model.generate(input_ids=[ids], max_new_tokens=8)
    assert len(result.tokens[0]) <= 8


def test_the_sizes_of_llada_8b_take_4_9_gb_as_q4_k_m() -> None:
    total = 0
    for _, sizes, kind in random_gguf.tensors(random_gguf.SHAPES["llada-8b"], "Q4_K_M"):
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        total += int(np.prod(sizes)) // block * size
    assert 4.9e9 < total < 4.95e9


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / name).mkdir()
        random_gguf.write(tmp_path / name / "toy.gguf", TINY, "Q6_K", seed)
    first, same, other = ((tmp_path / name / "toy.gguf").read_bytes() for name in "abc")
    assert first == same
    assert first != other


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--shape", "smollm2-135m", "--type", "Q4_K"),
            "Q4_K stores 256 values at a time, and rows of token_embd.weight",
        ),
        (("--shape", "tiny", "--vocab", "100"), "a vocabulary of 100 is too small"),
        (("--shape", "tiny", "--heads", "3"), "width 256, 3 heads and 4 KV heads do not fit"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "toy.gguf", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert problem in done.stderr
    assert not (tmp_path / "toy.gguf").exists()
