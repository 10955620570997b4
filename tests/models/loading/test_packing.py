"""Models of GGUF files whose matrices stay packed: the dequantized model's outputs, in the file's bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pardec
from pardec.models.draft_modules.adapter import draft_adapter
from pardec.models.errors import ArgumentError, ModelError
from pardec.models.files.gguf.header import read_header
from pardec.models.files.gguf.tensors import FileTensor
from pardec.models.kernels.cpu import blocks
from pardec.models.kernels.cpu.blocks import BlockWeight
from pardec.models.loading.outline import memory_described, outline
from pardec.models.plan import Plan
from pardec.models.trimmed import bytes_read, trimmed
from tests.models.adapters import naive, pairs, write_adapter
from tests.models.loading.gguf_files import write_embedded_gguf, write_gguf
from tests.models.loading.mixed_gguf import Q4_K_M, write_mixed
from tests.models.loading.test_gguf import IDS, logits
from tests.models.toys import write_checkpoint

pytestmark = pytest.mark.skipif(blocks.kernel() is None, reason="no kernel for packed weights here")


def packed_names(model: pardec.Model) -> set[str]:
    parameters = model.network.decoder.named_parameters()  # type: ignore[union-attr]
    return {name.rpartition(".")[2] for name, weight in parameters if isinstance(weight, BlockWeight)}


def masked_file(file: Path, kind: str, family: str) -> Path:
    published = pardec.load(f"tiny-{family}", device="cpu").network.path
    return write_embedded_gguf(file, published, family, kind)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "llada", "dream"])
@pytest.mark.covers(1)
def test_a_packed_model_is_the_dequantized_one(tmp_path: Path, kind: str, family: str) -> None:
    write = masked_file if family in ("llada", "dream") else write_gguf
    file = write(tmp_path / "toy.gguf", kind, family)
    own, plain = pardec.load(file, device="cpu"), pardec.load(file, device="cpu", packed=False)
    assert len(packed_names(own)) > 3
    assert not packed_names(plain)
    assert torch.allclose(logits(own), logits(plain), rtol=1e-4, atol=1e-4)
    rounded = pardec.load(file, device="cpu", activations="int8")
    assert 1e-4 < (logits(rounded) - logits(plain)).abs().max() < 2


def test_the_file_s_own_bytes_are_in_memory(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q4_1")
    own, plain = pardec.load(file, device="cpu"), pardec.load(file, device="cpu", packed=False)
    assert own.network.weight_bytes < 0.25 * plain.network.weight_bytes  # 5 bits of 32, and panels filled up
    assert own.network.decoder.head.weight is own.network.decoder.embed.weight  # type: ignore[union-attr]
    assert "packed matrices: 9 Q4_1, activations float32" in own.network.choice


def test_a_named_dtype_is_that_of_plain_weights(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    for dtype in ("float32", "bfloat16"):
        assert not packed_names(pardec.load(file, device="cpu", dtype=dtype))
        own = pardec.load(file, device="cpu", dtype=dtype, packed=True)
        assert packed_names(own)
        assert own.network.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("sampler", ["lookup", "jacobi", "recycling"])
@pytest.mark.covers(1)
def test_drafters_give_the_tokens_of_the_packed_model(tmp_path: Path, activations: str, sampler: str) -> None:
    model: Any = pardec.load(write_gguf(tmp_path / "toy.gguf", "Q4_1"), device="cpu", activations=activations)
    prompts = ["the 12 the 12 the", "in"]
    expected = [[*model.generate(prompt, sampler="sequential", max_new_tokens=16).tokens[0]] for prompt in prompts]
    assert [*map(list, model.generate(prompts, sampler=sampler, max_new_tokens=16).tokens)] == expected


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("sampler", ["threshold@dual", "threshold@none", "sequential@prefix"])
@pytest.mark.covers(1)
def test_packed_masked_models_decode(tmp_path: Path, activations: str, sampler: str) -> None:
    file = masked_file(tmp_path / "toy.gguf", "Q8_0", "dream")
    packed: Any = pardec.load(file, device="cpu", activations=activations)
    plain: Any = pardec.load(file, device="cpu", packed=False)
    for model in (packed, plain):
        model.network.tokenizer = pardec.load("tiny-dream", device="cpu").network.tokenizer
    prompts = ["add 3 4", "add 1 2"]
    found = [*map(list, packed.generate(prompts, sampler=sampler, max_new_tokens=16).tokens)]
    if activations == "float32":
        expected = plain.generate(prompts, sampler=sampler, max_new_tokens=16).tokens
    else:  # its own tokens, each prompt alone
        expected = [packed.generate(prompt, sampler=sampler, max_new_tokens=16).tokens[0] for prompt in prompts]
    assert found == [*map(list, expected)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"activations": "int4"}, "unknown activations 'int4'"),
        ({"activations": "int8", "packed": False}, "activations=int8 cannot be followed: packed=False"),
        ({"packed": True, "device_map": "auto"}, "packed=True cannot be followed: device_map=auto needs plain weights"),
    ],
)
def test_what_cannot_be_followed_is_named(tmp_path: Path, arguments: dict[str, Any], problem: str) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    with pytest.raises(ArgumentError, match=problem):
        pardec.load(file, device="cpu", **arguments)


MIXED = [
    (Q4_K_M, "7 Q4_K, 2 Q6_K, 1 Q4_K+Q6_K", ""),
    (Q4_K_M | {"token_embd": "F16"}, "6 Q4_K, 2 Q6_K, 1 Q4_K+Q6_K", "1 plain (F16)"),
    ({"": "Q5_K", "output": "Q6_K", "token_embd": "Q8_0"}, "8 Q5_K, 1 Q8_0, 1 Q6_K", ""),
    ({"": "Q3_K", "blk.1.attn_q": "Q4_K", "output": "Q6_K"}, "1 Q6_K", "9 plain (Q3_K, Q4_K+Q3_K)"),
    ({"": "IQ4_XS", "output": "Q6_K"}, "1 Q6_K", "9 plain (IQ4_XS)"),
    ({"": "Q2_K"}, "", "no matrix packed (Q2_K)"),
]


@pytest.mark.parametrize(("types", "packed", "plain"), MIXED)
def test_files_of_several_types(tmp_path: Path, types: dict[str, str], packed: str, plain: str) -> None:
    file = write_mixed(tmp_path / "toy.gguf", types)
    own, dense = pardec.load(file, device="cpu"), pardec.load(file, device="cpu", packed=False)
    assert packed in own.network.choice
    assert plain in own.network.choice
    assert torch.allclose(logits(own), logits(dense), rtol=1e-4, atol=1e-4)
    outlined = outline(file, device="cpu")
    assert outlined.weight_bytes == own.network.weight_bytes
    ids: Any = {"input_ids": [[5, 9, 30, 5, 9]], "max_new_tokens": 12, "stop_ids": []}
    assert own.generate(**ids, sampler="lookup").tokens == own.generate(**ids, sampler="sequential").tokens


def test_a_tied_head_of_several_types(tmp_path: Path) -> None:
    for embedding, is_packed in (("Q6_K", True), ("F16", False)):
        file = write_mixed(tmp_path / "toy.gguf", Q4_K_M | {"token_embd": embedding}, tied=True)
        own, dense = pardec.load(file, device="cpu"), pardec.load(file, device="cpu", packed=False)
        assert isinstance(own.network.decoder.head.weight, BlockWeight) == is_packed  # type: ignore[union-attr]
        assert torch.allclose(logits(own), logits(dense), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arguments", [{"packed": True}, {"activations": "int8"}], ids=str)
def test_types_without_a_kernel_are_refused_where_they_are_to_stay_packed(tmp_path: Path, arguments: Any) -> None:
    file = write_mixed(tmp_path / "toy.gguf", {"": "Q2_K"})
    with pytest.raises(ArgumentError, match="cannot be followed: the file holds Q2_K, and no kernel"):
        pardec.load(file, device="cpu", **arguments)


def test_what_shows_of_a_file(tmp_path: Path) -> None:
    file = write_mixed(tmp_path / "toy.gguf", {"": "Q3_K", "token_embd": "F16", "output": "Q6_K"})
    shown = memory_described(file)
    assert shown["packed"].startswith("1 Q6_K, 0.0605 MB")
    assert shown["dequantized"].startswith("8 Q3_K, ")
    assert shown["dequantized"].endswith(" MB in float32 (no kernel multiplies these types)")
    assert shown["plain"].startswith("1 F16, ")
    assert shown["activations"].startswith("float32")
    assert shown["keys and values"] == "float32, 2.05 MB per 1,000 positions"
    assert memory_described("tiny-llama") == {}


@pytest.mark.parametrize("bits", [0x7C00, 0x7E00], ids=["inf", "nan"])
def test_a_damaged_head_is_named(tmp_path: Path, bits: int) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    content = bytearray(file.read_bytes())
    start = read_header(file).tensors["token_embd.weight"].start
    content[start : start + 2] = bits.to_bytes(2, "little")
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"its weight embed.weight holds NaN or infinity \(32 of"):
        pardec.load(tmp_path / "bad.gguf", device="cpu").generate("the 12", max_new_tokens=4)


def test_a_model_is_loaded_in_inference_mode(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    with torch.inference_mode():
        model = pardec.load(file, device="cpu")
    assert torch.equal(logits(model), logits(pardec.load(file, device="cpu")))


def test_heads_are_cut_without_the_whole_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pardec.load(write_gguf(tmp_path / "toy.gguf", "Q8_0"), device="cpu").language_model
    whole = logits(pardec.Model(model))
    monkeypatch.setattr(BlockWeight, "dense", None)
    less = trimmed(model, [1, 7, 60])
    found = less.forward(Plan.full(IDS, less.visible())).logits()  # of the kept ids alone, or of all
    found = found if found.shape[-1] == 3 else found[..., [1, 7, 60]]
    assert torch.allclose(found, whole[..., [1, 7, 60]], rtol=1e-4, atol=1e-4)
    rows = model.width * 4 * 3
    assert bytes_read(less) == bytes_read(model) - model.decoder.head.weight.stored_bytes + rows  # type: ignore[union-attr]


ADAPTED = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj"]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_an_adapter_is_merged_into_the_dequantized_weights(tmp_path: Path, family: str) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q4_1", family)
    plain = file.with_suffix("")  # the file's numbers as safetensors
    tensors = load_file(plain / "model.safetensors")
    modules = [f"model.layers.{layer}.{part}" for layer in range(2) for part in ADAPTED]
    halves = pairs(tensors, modules)
    adapter = write_adapter(tmp_path / "lora", halves, base_model_name_or_path="toy")
    config = json.loads((plain / "config.json").read_text())
    write_checkpoint(tmp_path / "merged", config, naive(tensors, halves, modules))
    own, merged = pardec.load(file, device="cpu", adapter=adapter), pardec.load(tmp_path / "merged", device="cpu")
    assert not packed_names(own)
    assert torch.allclose(logits(own), logits(merged), rtol=1e-4, atol=1e-4)
    rounded = pardec.load(file, device="cpu", adapter=adapter, quantize="int8")
    assert len(packed_names(rounded)) > 3
    assert 1e-4 < (logits(rounded) - logits(merged)).abs().max() < 2


@pytest.mark.parametrize("arguments", [{"packed": True}, {"activations": "int8"}], ids=str)
def test_an_adapter_on_packed_weights_is_refused_before_they_are_read(
    tmp_path: Path, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    halves = pairs(load_file(file.with_suffix("") / "model.safetensors"), ["model.layers.0.self_attn.q_proj"])
    adapter = write_adapter(tmp_path / "lora", halves, base_model_name_or_path="toy")
    monkeypatch.setattr(FileTensor, "raw", None)
    with pytest.raises(ArgumentError, match="cannot be followed: adapter=.*lora needs plain weights") as raised:
        pardec.load(file, device="cpu", adapter=adapter, **arguments)
    assert raised.value.hint == 'leave adapter out, or use quantize="int8", which packs merged weights'


def test_an_adapter_that_drafts_on_packed_weights(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    modules = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(2)]
    halves = pairs(load_file(file.with_suffix("") / "model.safetensors"), modules)
    adapter = write_adapter(tmp_path / "lora", halves, base_model_name_or_path="toy")
    model, merged = pardec.load(file, device="cpu"), pardec.load(file, device="cpu", adapter=adapter)
    network = model.language_model
    drafts = draft_adapter(network, str(adapter))
    with torch.inference_mode():
        found = drafts.run(Plan.full(IDS, network.visible()), None).logits()
    assert torch.allclose(found, logits(merged), rtol=1e-4, atol=1e-4)
    assert "out_weight" in packed_names(model)  # while it verifies
    ids: Any = {"input_ids": [[5, 9, 30, 5, 9], [7]], "max_new_tokens": 12, "stop_ids": []}
    expected = model.generate(**ids, sampler="sequential").tokens
    assert model.generate(**ids, sampler=f"linearspec:k=4,mask=3,adapter={adapter}").tokens == expected


@pytest.mark.parametrize("arguments", [{}, {"adapter": True}, {"quantize": "int4"}], ids=str)
def test_a_packed_draft_model_and_any_target(tmp_path: Path, arguments: Any) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    drafter = write_gguf(tmp_path / "drafter.gguf", "Q4_1", "qwen3")
    if arguments.get("adapter"):
        halves = pairs(load_file(file.with_suffix("") / "model.safetensors"), ["model.layers.0.self_attn.q_proj"])
        arguments = {"adapter": write_adapter(tmp_path / "lora", halves, base_model_name_or_path="toy")}
    model = pardec.load(file, device="cpu", **arguments)
    ids: Any = {"input_ids": [[5, 9, 30, 5, 9], [7]], "max_new_tokens": 12, "stop_ids": []}
    expected = model.generate(**ids, sampler="sequential").tokens
    assert model.generate(**ids, sampler=f"model:name={drafter},k=3").tokens == expected


STORES = ["int8", "kivi:bits=4", "kivi:bits=2", "gear", "mustafar", "rotatekv", "channels"]
STORES += ["cake:budget=48", "streaming:window=16", "lminfinite:window=16", "retrieval"]


@pytest.fixture(scope="module")
def own_and_dense(tmp_path_factory: pytest.TempPathFactory) -> tuple[pardec.Model, pardec.Model]:
    folder = tmp_path_factory.mktemp("longer")
    file = write_gguf(folder / "toy.gguf", "Q4_1", changes={"max_position_embeddings": 256})
    return pardec.load(file, device="cpu"), pardec.load(file, device="cpu", packed=False)


@pytest.mark.parametrize("store", STORES)
def test_a_cache_of_fewer_bytes_gives_the_dense_model_s_tokens(own_and_dense: Any, store: str) -> None:
    own, dense = own_and_dense
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, 200, (length,), generator=draw).tolist() for length in (80, 37)]
    ids: Any = {"input_ids": rows, "max_new_tokens": 16, "stop_ids": []}
    expected = dense.generate(**ids, sampler=f"sequential@{store}").tokens
    assert own.generate(**ids, sampler=f"sequential@{store}").tokens == expected
    assert own.generate(**ids, sampler=f"lookup:k=4@{store}").tokens == expected


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_keys_and_values_in_16_bits(tmp_path: Path, activations: str) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q4_1")
    own = pardec.load(file, device="cpu", dtype="bfloat16", packed=True, activations=activations)
    plain = pardec.load(file, device="cpu", packed=False)
    cache = own.language_model.new_cache(1, 8)
    assert {part.dtype for part in (*cache.k, *cache.v)} == {torch.bfloat16}
    assert (logits(own) - logits(plain)).abs().mean() < 0.1 * logits(plain).abs().mean()
    ids: Any = {"input_ids": [[5, 9, 30, 5, 9], [7]], "max_new_tokens": 12, "stop_ids": []}
    for store in ("", "@int8"):
        assert [*map(len, own.generate(**ids, sampler=f"lookup:k=4{store}").tokens)] == [12, 12]


def test_other_files_cannot_stay_packed() -> None:
    with pytest.raises(ArgumentError, match="packed=True cannot be followed: tiny-llama is no GGUF file"):
        pardec.load("tiny-llama", device="cpu", packed=True)
    with pytest.raises(ArgumentError, match="activations=int8"):
        pardec.load("tiny-mar", device="cpu", activations="int8")
