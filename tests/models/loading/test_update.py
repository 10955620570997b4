"""Weights replaced in place: the model equals a fresh load of them, and uses the same memory."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import pardec
from pardec.models.errors import ArgumentError, ModelError
from pardec.models.files.sources import local
from pardec.models.kernels.cpu.panels import Panels
from pardec.models.layers import quantize
from pardec.models.load import load
from pardec.models.loading.update import load_weights
from pardec.models.trimmed import trimmed
from tests.models import llamagen_files
from tests.models.families import test_diffusion_gemma, test_experts
from tests.models.families.test_mar import FILE, GOLDEN
from tests.models.loading.gguf_files import write_gguf
from tests.models.toys import SMALL, family_folder, llama_config, llama_folder, llama_tensors

IDS = torch.arange(3, 23)[None]


def other(tensors: Mapping[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    """Other random weights of the same names, shapes and dtypes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(tensor.shape, generator=generator) * 0.1 + (tensor.dim() == 1)).to(tensor.dtype)
        for name, tensor in tensors.items()
    }


def tensors_in(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def replaced(folder: Path, tensors: Mapping[str, Tensor], to: Path) -> Path:
    """The checkpoint with replaced tensors."""
    to.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.is_file() and "safetensors" not in file.name:
            shutil.copy(file, to)
    save_file(dict(tensors), to / "model.safetensors")
    return to


def storage(weight: Tensor) -> list[int]:
    """The addresses of the memory that holds a weight."""
    if isinstance(weight, Panels):
        return [weight.packed.data_ptr()]
    parts = getattr(weight, "__tensor_flatten__", None)
    if parts is None:
        return [weight.data_ptr()]
    return [address for name in parts()[0] for address in storage(getattr(weight, name))]


def addresses(model: Any) -> list[list[int]]:
    if hasattr(model, "head"):
        return [storage(weight) for part in (model.backbone, model.head) for _, weight in part.named_parameters()]
    again = getattr(getattr(model.decoder, "head", None), "again", None)
    derived = [] if again is None else [storage(again)]
    return [storage(weight) for weight in model.decoder.parameters()] + derived


def check_updated(
    folder: Path, tensors: Mapping[str, Tensor], to: Path, weights: Any = None, **more: Any
) -> pardec.Model:
    """Asserts that a model of `folder` with new weights has the bits and tokens of one loaded from these weights."""
    model = pardec.load(folder, device="cpu", **more)
    before, memory = model.logits(IDS), addresses(model.network)
    model.load_weights(tensors if weights is None else weights)
    fresh = pardec.load(replaced(folder, tensors, to), device="cpu", **more)
    assert torch.equal(model.logits(IDS), fresh.logits(IDS))
    assert not torch.equal(before, model.logits(IDS))
    arguments: dict[str, Any] = {"input_ids": IDS[:, 2:7], "max_new_tokens": 12, "stop_ids": []}
    for sampling in ({}, {"temperature": 1.0, "seed": 4}):
        assert model.generate(**arguments, **sampling).tokens == fresh.generate(**arguments, **sampling).tokens
    assert addresses(model.network) == memory
    assert model.network.weights_version == 1
    return model


# --- families ---


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-dream"])
@pytest.mark.covers(1)
def test_embedded_models(name: str, dtype: str, tmp_path: Path) -> None:
    source = local(name)
    new = other(tensors_in(source.folder))
    shutil.copytree(source.folder, tmp_path / "base")
    for file in source.tokenizer.glob("*.json"):
        shutil.copy(file, tmp_path / "base")
    check_updated(tmp_path / "base", new, tmp_path / "new", dtype=dtype)


FAMILIES: dict[str, Callable[[Path], Any]] = {
    "llama": lambda folder: llama_folder(folder),
    "llama, tied": lambda folder: llama_folder(folder, tie_word_embeddings=True),
    "qwen2": lambda folder: by_transformers(folder, "Qwen2", num_key_value_heads=2),
    "gemma2, whose norms are converted": lambda folder: by_transformers(folder, "Gemma2", head_dim=12),
    "phi3, published fused": lambda folder: by_transformers(folder, "Phi3", num_key_value_heads=2, pad_token_id=0),
    "gpt2, through transformers": lambda folder: by_transformers(
        folder, "GPT2", n_embd=48, n_layer=2, n_head=4, n_positions=64
    ),
    "experts, through transformers": lambda folder: by_transformers(
        folder, "Mixtral", num_local_experts=4, num_key_value_heads=2
    ),
    "diffusion gemma": lambda folder: diffusion_gemma(folder),
    **{
        name: lambda folder, config=config: family_folder(folder, config) for name, config in test_experts.KINDS.items()
    },
}


def diffusion_gemma(folder: Path) -> None:
    test_diffusion_gemma.published(folder)
    (folder / "generation_config.json").write_text(json.dumps({"max_denoising_steps": 4}))


def by_transformers(folder: Path, kind: str, **settings: Any) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SMALL | settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_random_models_of_families(family: str, dtype: str, tmp_path: Path) -> None:
    FAMILIES[family](tmp_path / "base")
    check_updated(tmp_path / "base", other(tensors_in(tmp_path / "base")), tmp_path / "new", dtype=dtype)


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_panels_and_the_copy_of_a_tied_head(dtype: str, tied: bool, tmp_path: Path, monkeypatch: Any) -> None:
    from pardec.models.kernels.cpu import library

    monkeypatch.setattr(library, "has_tiles", lambda: False)
    base = llama_folder(
        tmp_path / "base", hidden_size=512, intermediate_size=600, vocab_size=530, tie_word_embeddings=tied,
        num_hidden_layers=1, num_attention_heads=8,
    )  # fmt: skip
    model = check_updated(base, other(tensors_in(base)), tmp_path / "new", dtype=dtype)
    decoder: Any = model.language_model.decoder
    assert isinstance(decoder.layers[0].gate_up_weight, Panels)
    assert isinstance(decoder.head.again if tied else decoder.head.weight, Panels)


@pytest.fixture(params=["blocks", "torchao"])
def quantizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What quantizes on a CPU: pardec where it has a kernel, else torchao."""
    if request.param == "torchao":
        pytest.importorskip("torchao")
        monkeypatch.setattr(quantize, "kernel", lambda: None)
    elif quantize.kernel() is None:
        pytest.skip("no kernel for packed weights here")


@pytest.mark.usefixtures("quantizes")
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantized_layers_are_quantized_again(kind: str, tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base", hidden_size=64, intermediate_size=64, vocab_size=64)
    check_updated(base, other(tensors_in(base)), tmp_path / "new", quantize=kind, dtype="bfloat16")


@pytest.mark.usefixtures("quantizes")
def test_quantized_experts_and_layers_of_another_library(tmp_path: Path) -> None:
    family_folder(tmp_path / "experts", test_experts.SDAR_MOE | {"hidden_size": 64})
    by_transformers(tmp_path / "neox", "GPTNeoX", hidden_size=64)
    for name in ("experts", "neox"):
        new = other(tensors_in(tmp_path / name))
        check_updated(tmp_path / name, new, tmp_path / f"new {name}", quantize="int8")


def test_packed_blocks_of_a_gguf_file_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    model = pardec.load(file, device="cpu", packed=True)
    before = model.logits(IDS)
    with pytest.raises(ModelError, match="packed as the blocks of its GGUF file") as caught:
        model.load_weights(tmp_path / "toy")
    assert "packed=False" in str(caught.value.hint)
    assert torch.equal(model.logits(IDS), before)
    assert model.network.weights_version == 0
    plain = pardec.load(file, device="cpu", packed=False)
    plain.load_weights({name: weight + 0.25 for name, weight in tensors_in(tmp_path / "toy").items()})
    assert not torch.equal(plain.logits(IDS), before)


def test_layers_laid_out_by_a_device_map(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base")
    model, fresh = (pardec.load(base, device_map="auto"), replaced(base, other(tensors_in(base)), tmp_path / "new"))
    memory = addresses(model.network)
    model.load_weights(fresh)
    assert torch.equal(model.logits(IDS), pardec.load(fresh, device_map="auto").logits(IDS))
    assert addresses(model.network) == memory


def test_a_model_loaded_in_inference_mode(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base")
    with torch.inference_mode():
        model = load(base, device="cpu")
    load_weights(model, other(tensors_in(base)))
    assert model.weights_version == 1


# --- names and files ---


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize("wrapper", ["module.", "base_model.model.", "module._orig_mod.", "module.base_model.model."])
def test_what_wrappers_put_before_all_names_is_taken_off(wrapper: str, tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base")
    new = other(tensors_in(base))
    check_updated(base, new, tmp_path / "new", {wrapper + name: value for name, value in new.items()})


def test_a_wrapper_of_some_names_is_not(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base")
    new = other(tensors_in(base))
    new["module.lm_head.weight"] = new.pop("lm_head.weight")
    with pytest.raises(ModelError, match=r"1 missing: lm_head.weight; 1 not known: module.lm_head.weight"):
        load_weights(load(base, device="cpu"), new)


def test_the_state_dict_of_a_trainers_model(tmp_path: Path) -> None:
    """Parameters that require gradients, and a tied head under both of its names."""
    by_transformers(tmp_path / "base", "Llama", tie_word_embeddings=True)
    trainer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").train()
    optimizer = torch.optim.SGD(trainer.parameters(), lr=1.0)
    trainer(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()  # type: ignore[no-untyped-call]
    trainer.eval().save_pretrained(tmp_path / "saved")
    state = Wrapper(trainer).state_dict()
    assert {"module.lm_head.weight", "module.model.embed_tokens.weight"} <= set(state)
    models = [pardec.load(tmp_path / "base", device="cpu") for _ in range(2)]
    models[0].load_weights(state)
    models[1].load_weights(tmp_path / "saved")
    with torch.no_grad():
        expected = trainer(input_ids=IDS).logits
    for model in models:
        torch.testing.assert_close(model.logits(IDS), expected, atol=1e-5, rtol=0)


def test_folders_of_shards_and_pickles(tmp_path: Path) -> None:
    base, config = llama_folder(tmp_path / "base"), llama_config()
    new = other(llama_tensors(config))
    for name in ("shards", "pickle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    names = sorted(new)
    files = {f"model-{part}-of-2.safetensors": names[part::2] for part in (0, 1)}
    for file, part in files.items():
        save_file({name: new[name] for name in part}, tmp_path / "shards" / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (tmp_path / "shards" / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(OrderedDict(new), tmp_path / "pickle" / "pytorch_model.bin")
    for name in ("shards", "pickle"):
        check_updated(base, new, tmp_path / f"new {name}", tmp_path / name)


# --- images ---


@pytest.mark.parametrize("kind", ["c2i", "t2i"])
def test_llamagen_with_what_embeds_its_conditions(kind: str, tmp_path: Path) -> None:
    first = llamagen_files.tensors(kind)
    new = other(first)
    base, changed = (
        llamagen_files.write(tmp_path, each, llamagen_files.ARGUMENTS, name)
        for each, name in ((first, "base.pt"), (new, "new.pt"))
    )
    condition = {"label": [1, 3]} if kind == "c2i" else {"prompt_embeds": torch.ones(2, 3, 7)}
    arguments: dict[str, Any] = {**condition, "seed": 5, "temperature": 1.0, "cfg": 2.0}
    fresh = pardec.load(changed, device="cpu").generate(**arguments).tokens
    for weights in (new, changed):
        model = pardec.load(base, device="cpu")
        model.load_weights(weights)
        assert model.generate(**arguments).tokens == fresh
    lacking = {name: value for name, value in new.items() if "cls_embedding" not in name}
    with pytest.raises(ModelError, match=r"tensors are missing: cls_embedding"):
        model.load_weights(lacking)


def test_mar_with_the_times_that_its_head_has_embedded(tmp_path: Path) -> None:
    new = other(torch.load(GOLDEN / FILE, weights_only=True)["model_ema"])
    torch.save({"model": new}, tmp_path / FILE)
    shutil.copy(GOLDEN / "args.json", tmp_path)
    arguments: dict[str, Any] = {"label": [2, 7], "seed": 3, "cfg": 2.0, "sampler": "mar:steps=3,head=10"}
    fresh = pardec.load(tmp_path, device="cpu").generate(**arguments).latents
    for weights in (new, tmp_path):
        model = pardec.load(GOLDEN, device="cpu")
        before, memory = model.generate(**arguments).latents, addresses(model.network)
        model.load_weights(weights)
        assert torch.equal(model.generate(**arguments).latents, fresh)
        assert not torch.equal(before, fresh)
        assert addresses(model.network) == memory
        assert model.network.weights_version == 1


def test_a_drafting_mar_of_the_same_name_is_another_model_behind_new_weights(tmp_path: Path) -> None:
    """The drafter has the same name but the weights of the files; the target has the new weights."""
    new = other(torch.load(GOLDEN / FILE, weights_only=True)["model_ema"])
    torch.save({"model": new}, tmp_path / FILE)
    shutil.copy(GOLDEN / "args.json", tmp_path)
    sampler = f'cspd:draft="{GOLDEN}",k=4,mode=exact,steps=4,head=10'
    arguments: dict[str, Any] = {"label": [1], "seed": 3, "sampler": sampler}
    model = pardec.load(GOLDEN, device="cpu")
    before = model.generate(**arguments).latents
    model.load_weights(new)
    after = model.generate(**arguments).latents
    assert not torch.equal(before, after)
    assert torch.equal(after, pardec.load(tmp_path, device="cpu").generate(**arguments).latents)


# --- refusals ---


def without(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name != "model.norm.weight"}


REFUSED: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (without, "1 missing: model.norm.weight"),
    "surplus": (lambda state: state | {"extra": torch.ones(1)}, "1 not known: extra"),
    "misshapen": (lambda state: state | {"model.norm.weight": torch.ones(8)}, r"model.norm.weight \[8\]"),
    "whole numbers": (
        lambda state: state | {"model.norm.weight": torch.ones(16, dtype=torch.int8)},
        "not floating-point: model.norm.weight",
    ),
    "on meta": (lambda state: state | {"model.norm.weight": torch.ones(16, device="meta")}, "is on the meta device"),
    "an adapter": (
        lambda state: state | {"model.layers.0.self_attn.q_proj.lora_A.default.weight": torch.ones(2, 16)},
        "holds an adapter that is not merged",
    ),
    "no tensors": (lambda state: state | {"model.norm.weight": [1.0] * 16}, "this one holds 'model.norm.weight': list"),
    "nothing": (lambda state: {}, "21 missing"),
    "no folder": (lambda state: "/nowhere/at/all", "there are no weights at"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_call_changes_nothing(case: str, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    base = llama_folder(tmp_path / "base")
    model = pardec.load(base, device="cpu")
    before = model.logits(IDS)
    with pytest.raises(ModelError, match=message):
        model.load_weights(change(other(tensors_in(base))))
    assert torch.equal(model.logits(IDS), before)
    assert model.network.weights_version == 0


def test_folders_of_other_models_are_refused(tmp_path: Path) -> None:
    model = load(llama_folder(tmp_path / "base"), device="cpu")
    for name, changes in {
        "theta": {"rope_theta": 500.0},
        "family": {"model_type": "mistral", "sliding_window": None},
    }.items():
        folder = llama_folder(tmp_path / name, **changes)
        with pytest.raises(ModelError, match="does not describe the model base"):
            load_weights(model, folder)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ArgumentError, match="holds an adapter"):
        load_weights(model, tmp_path / "adapter")
    cut = llama_folder(tmp_path / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(ModelError, match="damaged or cut short"):
        load_weights(model, tmp_path / "cut")
    assert model.weights_version == 0


def test_tied_tensors_that_differ_are_refused(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base", tie_word_embeddings=True)
    new = other(tensors_in(base))
    table = new["model.embed_tokens.weight"]
    model = load(base, device="cpu")
    with pytest.raises(ModelError, match="differ, and in base they are one tensor"):
        load_weights(model, new | {"lm_head.weight": table + 1})
    load_weights(model, new | {"lm_head.weight": table})
    assert torch.equal(model.decoder.embedding, table)


@pytest.mark.parametrize("case", ["missing", "surplus", "misshapen"])
def test_a_refused_call_changes_nothing_of_another_librarys_model(case: str, tmp_path: Path) -> None:
    by_transformers(tmp_path, "GPTNeoX")
    model, state = pardec.load(tmp_path, device="cpu"), other(tensors_in(tmp_path))
    before, name = model.logits(IDS), "gpt_neox.final_layer_norm.weight"
    changes: dict[str, dict[str, Tensor]] = {
        "missing": {each: value for each, value in state.items() if each != name},
        "surplus": state | {"gpt_neox.extra": torch.ones(1)},
        "misshapen": state | {name: torch.ones(8)},
    }
    with pytest.raises(ModelError):
        model.load_weights(changes[case])
    assert torch.equal(model.logits(IDS), before)
    assert model.network.weights_version == 0


def test_models_without_a_checkpoint_or_without_weights_are_refused(tmp_path: Path) -> None:
    from tests.models.toys import model as toy

    with pytest.raises(ModelError, match="was not loaded from a checkpoint"):
        load_weights(toy(), {})
    base = llama_folder(tmp_path / "base")
    with pytest.raises(ModelError, match="are offloaded from its devices"):
        load_weights(load(base, device="meta"), tensors_in(base))


# --- what is derived ---


def test_a_head_that_was_cut_follows_its_base(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base")
    new = other(tensors_in(base))
    model = load(base, device="cpu")
    cut = trimmed(model, [1, 5, 9, 30])
    rows = cut.decoder.head.weight.data_ptr()  # type: ignore[attr-defined]
    load_weights(model, new)
    expected = trimmed(load(replaced(base, new, tmp_path / "new"), device="cpu"), [1, 5, 9, 30])
    assert torch.equal(pardec.Model(cut).logits(IDS), pardec.Model(expected).logits(IDS))
    load_weights(cut, tensors_in(base))
    again = trimmed(load(base, device="cpu"), [1, 5, 9, 30])
    assert torch.equal(pardec.Model(cut).logits(IDS), pardec.Model(again).logits(IDS))
    assert cut.decoder.head.weight.data_ptr() == rows  # type: ignore[attr-defined]
    assert (model.weights_version, cut.weights_version) == (2, 2)


def test_caches_of_keys_are_not_written_to(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base")
    model = load(base, device="cpu")
    cache = model.new_cache(1, 8)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(3.0)
    load_weights(model, other(tensors_in(base)))
    assert all(bool((tensor == 3.0).all()) for tensor in (*cache.k, *cache.v))


def test_damaged_weights_are_found_again_when_they_decode(tmp_path: Path) -> None:
    """Loading does not search for NaN; the check of the head runs again after weights were replaced."""
    base = llama_folder(tmp_path / "base")
    model, new = pardec.load(base, device="cpu"), other(tensors_in(base))
    model.generate(input_ids=IDS, max_new_tokens=2)
    new["lm_head.weight"][7, 3] = float("inf")
    assert model.language_model.head_read
    model.load_weights(new)
    assert not model.language_model.head_read
    with pytest.raises(ModelError, match=r"head.weight holds NaN or infinity"):
        model.generate(input_ids=IDS, max_new_tokens=2)
