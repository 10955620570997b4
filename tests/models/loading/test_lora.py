"""Adapters: merges compared with PEFT's where transformers has the model, with outer products elsewhere; refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import pardec
from pardec.models.errors import ModelError
from pardec.models.files.lora import _FOREIGN, _KNOWN, read_adapter, same_base
from pardec.models.kernels.cpu import blocks
from pardec.models.load import load, load_any, load_continuous
from pardec.models.loading.recognition import describe
from tests.models import llamagen_files
from tests.models.adapters import CONFIG, naive, pairs, write_adapter
from tests.models.families import test_experts
from tests.models.families.test_mar import FILE, GOLDEN
from tests.models.families.test_mar import tensors as mar_tensors
from tests.models.parallel.test_tensor_parallel import llada_folder
from tests.models.toys import SMALL, family_folder, llama_config, llama_folder, llama_tensors, write_checkpoint

IDS = torch.arange(3, 23)[None]
BIASED = {"attention_bias": True, "mlp_bias": True}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GPT2 = {"vocab_size": 61, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 24}
# The base's class and config, and the adapter's config.
BY_PEFT: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama, all linear layers": ("Llama", {"num_key_value_heads": 2}, {"target_modules": "all-linear"}),
    "ranks and scales by pattern": (
        "Llama",
        {},
        {
            "target_modules": LINEAR,
            "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 5},
            "alpha_pattern": {"down_proj": 7, "0.self_attn.v_proj": 1},
        },
    ),
    "rsLoRA, one layer": (
        "Qwen2",
        {"num_key_value_heads": 2},
        {"target_modules": ["q_proj", "down_proj"], "use_rslora": True, "layers_to_transform": [1]},
    ),
    "DoRA, tied": (
        "Qwen3",
        {"num_key_value_heads": 2, "head_dim": 12, "tie_word_embeddings": True},
        {"target_modules": LINEAR, "use_dora": True},
    ),
    "embedding and head": ("Llama", {}, {"target_modules": ["embed_tokens", "lm_head", "o_proj"]}),
    "saved whole": ("Llama", {}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "input_layernorm"]}),
    "saved whole, by endings": ("Llama", {}, {"target_modules": ["q_proj"], "modules_to_save": ["head", "layernorm"]}),
    "all biases": ("Llama", BIASED, {"target_modules": ["q_proj", "up_proj"], "bias": "all"}),
    "biases of its own": ("Llama", BIASED, {"target_modules": LINEAR, "lora_bias": True}),
    "norms of heads, windows": ("Gemma3Text", {"sliding_window": 8, "head_dim": 12}, {"target_modules": LINEAR}),
    "weights [in, out], through transformers": (
        "GPT2",
        GPT2,
        {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
    "DoRA on weights [in, out]": (
        "GPT2",
        GPT2,
        {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True},
    ),
    "a head with another name in files": ("GPTNeoX", {}, {"target_modules": ["query_key_value", "lm_head"]}),
    "the same, saved whole": ("GPTNeoX", {}, {"target_modules": ["dense"], "modules_to_save": ["lm_head"]}),
}


@torch.no_grad()
def adapted(base: Any, **settings: Any) -> Any:
    """The model with a random adapter."""
    wrapped = peft.get_peft_model(base, peft.LoraConfig(**settings))
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return wrapped


def trained(kind: str, settings: dict[str, Any], adapter: dict[str, Any], folder: Path) -> tuple[Path, Path, Any]:
    """A random base and adapter as files, and PEFT's merge of the two."""
    torch.manual_seed(3)
    sizes = settings if kind == "GPT2" else SMALL | {"pad_token_id": 0} | settings
    config = getattr(transformers, f"{kind}Config")(**sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    adapted(base, r=3, lora_alpha=10, **adapter).save_pretrained(folder / "tuned")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    return folder / "base", folder / "tuned", peft.PeftModel.from_pretrained(base, folder / "tuned").merge_and_unload()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", BY_PEFT)
def test_the_logits_are_those_of_pefts_own_merge(case: str, tmp_path: Path) -> None:
    base, tuned, merged = trained(*BY_PEFT[case], tmp_path)
    with torch.no_grad():
        expected = merged.eval()(input_ids=IDS).logits
    model = pardec.load(base, device="cpu", adapter=tuned)
    torch.testing.assert_close(model.logits(IDS), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(pardec.load(base, device="cpu").logits(IDS), expected, atol=1e-2)
    assert (model.name, model.network.adapter) == ("base+tuned", "tuned")
    assert "adapter tuned merged into" in model.network.describe()


@pytest.mark.filterwarnings("ignore")
def test_modules_saved_beside_their_base(tmp_path: Path) -> None:
    """save_embedding_layers, which PEFT turns on for a resized vocabulary, adds the base's tensors and other names."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SMALL, pad_token_id=0)
    base = transformers.AutoModelForCausalLM.from_config(config)
    base.save_pretrained(tmp_path / "base")
    wrapped = adapted(base, r=3, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    with torch.no_grad():
        expected = wrapped.eval()(input_ids=IDS).logits
    wrapped.save_pretrained(tmp_path / "tuned", save_embedding_layers=True)
    file = tmp_path / "tuned" / "adapter_model.safetensors"
    assert any("original_module" in name for name in load_file(file))
    model = pardec.load(tmp_path / "base", device="cpu", adapter=tmp_path / "tuned")
    torch.testing.assert_close(model.logits(IDS), expected, atol=1e-5, rtol=0)
    tensors = load_file(file)
    own = next(name for name in tensors if name.endswith("lm_head.modules_to_save.weight"))
    save_file({**tensors, own: tensors[own] + 1}, file)
    with pytest.raises(ModelError, match=r"lm_head.weight twice, with different values"):
        pardec.load(tmp_path / "base", device="cpu", adapter=tmp_path / "tuned")


def same_logits(base: Path, tuned: Path, merged: Path, **more: Any) -> None:
    """Asserts that merging gives the logits of a checkpoint merged beforehand, which differ from the base's."""
    ids = IDS[:, :8] % 12
    ours, expected, plain = (
        pardec.Model(load(*folders, device="cpu", **more, **adapter)).logits(ids)
        for folders, adapter in (((base,), {"adapter": tuned}), ((merged,), {}), ((base,), {}))
    )
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain, expected, atol=1e-3)


def merged_folder(base: Path, tensors: dict[str, Tensor], folder: Path) -> Path:
    shutil.copytree(base, folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def test_llada_whose_names_are_its_own(tmp_path: Path) -> None:
    base = llada_folder(tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    modules = [f"model.transformer.blocks.{i}.{name}" for i in (0, 1) for name in ("q_proj", "attn_out", "ff_proj")]
    halves = pairs(tensors, modules)
    tuned = write_adapter(tmp_path / "tuned", halves)
    same_logits(base, tuned, merged_folder(base, naive(tensors, halves, modules), tmp_path / "merged"))


def test_experts_one_by_one(tmp_path: Path) -> None:
    base = tmp_path / "base"
    tensors = family_folder(base, test_experts.LLADA_MOE)
    modules = [f"model.layers.1.mlp.experts.{e}.{part}_proj" for e in range(8) for part in ("gate", "down")]
    modules += ["model.layers.2.shared_expert.up_proj", "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.gate"]
    halves = pairs(tensors, modules)
    tuned = write_adapter(tmp_path / "tuned", halves)
    same_logits(base, tuned, merged_folder(base, naive(tensors, halves, modules), tmp_path / "merged"))


def test_llamagen_with_the_classes_that_it_embeds(tmp_path: Path) -> None:
    tensors = llamagen_files.tensors()
    modules = ["layers.0.attention.wqkv", "layers.1.feed_forward.w3", "output"]
    halves, table = pairs(tensors, modules), "cls_embedding.embedding_table.weight"
    saved = {f"base_model.model.{table}": tensors[table] + 1}
    tuned = write_adapter(tmp_path / "tuned", {**halves, **saved})
    held = {**naive(tensors, halves, modules), table: tensors[table] + 1}
    base, merged = (
        llamagen_files.write(tmp_path, each, llamagen_files.ARGUMENTS, name)
        for each, name in ((tensors, "base.pt"), (held, "merged.pt"))
    )
    same_logits(base, tuned, merged)
    models = pardec.load(base, device="cpu", adapter=tuned), pardec.load(merged, device="cpu")
    one, other = (model.generate(label=[1, 3], seed=5, temperature=1.0, cfg=2.0) for model in models)
    assert one.tokens == other.tokens
    assert one.model == "base+tuned"


def test_mar(tmp_path: Path) -> None:
    tensors = mar_tensors()
    modules = ["encoder_blocks.0.attn.qkv", "decoder_blocks.1.mlp.fc1", "diffloss.net.res_blocks.0.mlp.0"]
    halves = pairs(tensors, modules)
    tuned = write_adapter(tmp_path / "tuned", halves)
    (tmp_path / "merged").mkdir()
    torch.save({"model": naive(tensors, halves, modules)}, tmp_path / "merged" / FILE)
    shutil.copy(GOLDEN / "args.json", tmp_path / "merged")
    known = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    x, labels = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 7])
    model = load_continuous(GOLDEN, device="cpu", adapter=tuned)
    models = model, load_continuous(tmp_path / "merged", device="cpu"), load_continuous(GOLDEN, device="cpu")
    ours, expected, plain = (each.backbone.states(x, known, labels, ~known).cond for each in models)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain, expected, atol=1e-3)
    assert model.name.endswith("+tuned")


MODULES = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"]


@pytest.mark.parametrize("more", [{"dtype": "bfloat16"}, {"quantize": "int8"}], ids=str)
def test_merging_is_before_rounding_and_quantization(more: dict[str, Any], tmp_path: Path) -> None:
    if "quantize" in more and blocks.kernel() is None:
        pytest.importorskip("torchao")
    config = llama_config(hidden_size=64, intermediate_size=64)
    # Few bits of each number, so that sums in any order and precision are the same.
    tensors = {name: (value * 256).round() / 256 for name, value in llama_tensors(config).items()}
    halves = {name: (value * 16).round() / 16 for name, value in pairs(tensors, MODULES).items()}
    base = write_checkpoint(tmp_path / "base", config, tensors)
    merged = write_checkpoint(tmp_path / "merged", config, naive(tensors, halves, MODULES))
    tuned = write_adapter(tmp_path / "tuned", halves)
    one, other = load(base, device="cpu", adapter=tuned, **more), load(merged, device="cpu", **more)
    assert torch.equal(pardec.Model(one).logits(IDS), pardec.Model(other).logits(IDS))


def test_names_with_the_adapters_own_and_a_pickle(tmp_path: Path) -> None:
    tensors = llama_tensors(llama_config())
    base, halves = llama_folder(tmp_path / "base"), pairs(tensors, MODULES)
    plain = write_adapter(tmp_path / "plain", halves)
    named = write_adapter(tmp_path / "named", {}, target_modules=MODULES)
    (named / "adapter_model.safetensors").unlink()
    torch.save(
        {name.replace(".weight", ".mine.weight"): value for name, value in halves.items()}, named / "adapter_model.bin"
    )
    one, other = (pardec.load(base, device="cpu", adapter=str(folder)).logits(IDS) for folder in (plain, named))
    assert torch.equal(one, other)


def stem(module: str = MODULES[0]) -> str:
    return f"base_model.model.{module}."


def halves() -> dict[str, Tensor]:
    return pairs(llama_tensors(llama_config()), MODULES)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"peft_type": "IA3"}, "of peft_type IA3"),
    "no kind": ({"peft_type": None}, "of peft_type None"),
    "an activated LoRA": ({"alora_invocation_tokens": [1, 2]}, "is active only after certain tokens"),
    "parameters": ({"target_parameters": ["experts.gate_up_proj"]}, "parameters that are not the weight of a layer"),
    "layers twice": ({"layer_replication": [[0, 2], [0, 2]]}, "repeats layers"),
    "another base": ({"init_lora_weights": "pissa_niter_4"}, "changes the base as well"),
    "another rank": ({"r": 4}, "its config has r=4"),
    "no rank": ({"r": 0}, "r=0"),
    "another rank by pattern": ({"rank_pattern": {"down_proj": 2}}, "its config has r=2"),
    "no pattern": ({"alpha_pattern": {"(": 2}}, "no pattern"),
    "a flag of text": ({"use_rslora": "false"}, "use_rslora='false', and true or false is needed"),
    "no alpha": ({"lora_alpha": "much"}, "lora_alpha='much'"),
    "names of no modules": ({"exclude_modules": [3]}, "names of modules are needed"),
    "a module of no target": ({"target_modules": ["q_proj"]}, "holds updates of model.layers.1.mlp.down_proj"),
    "an excluded module": ({"exclude_modules": ["down_proj"]}, "holds updates of model.layers.1.mlp.down_proj"),
    "another layer": (
        {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0]},
        "holds updates of model.layers.1.mlp.down_proj",
    ),
    "no number of a layer": ({"layers_to_transform": ["one"]}, "numbers of layers are needed"),
    "biases of its own": ({"lora_bias": True}, "lacks lora_B.bias"),
    "tokens": ({"trainable_token_indices": [3]}, "changes rows of single tokens"),
    "DoRA without magnitudes": ({"use_dora": True}, "lacks lora_magnitude_vector"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_cannot_be_merged_are_refused(case: str, tmp_path: Path) -> None:
    changes, message = SETTINGS[case]
    with pytest.raises(ModelError, match="the adapter tuned") as refused:
        read_adapter(write_adapter(tmp_path / "tuned", halves(), **changes))
    assert message in str(refused.value)


def lacking(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in halves().items() if key != name}


TENSORS: dict[str, tuple[dict[str, Tensor], str]] = {
    "half a pair": (lacking(stem() + "lora_B.weight"), "lacks lora_B of model.layers.0.self_attn.q_proj"),
    "the other half": (lacking(stem() + "lora_A.weight"), "lacks lora_A of"),
    "nothing": ({}, "holds no tensors"),
    "no such tensor": ({"base_model.model.model.layers.7.norm.weight": torch.ones(16)}, "1 tensors that base does not"),
    "a bias of layers without": (halves() | {stem() + "lora_B.bias": torch.ones(16)}, "q_proj.bias"),
    "another width": (
        pairs({f"{MODULES[0]}.weight": torch.ones(32, 32)}, MODULES[:1]),
        "[16, 16] and its update [32, 32]",
    ),
    "a longer vocabulary": (
        {"base_model.model.lm_head.weight": torch.ones(41, 16)},
        "[40, 16] and its update [41, 16]",
    ),
    "two adapters": (
        halves() | {stem() + f"lora_{x}.other.weight": torch.ones(3, 3) for x in "AB"},
        "several adapters",
    ),
    "whole numbers": ({stem() + "lora_A.weight": torch.ones(3, 16, dtype=torch.int8)}, "not floating-point"),
    "magnitudes": (halves() | {stem() + "lora_magnitude_vector": torch.ones(16)}, "use_dora=False"),
    "convolutions": (
        {stem() + "lora_A.weight": torch.ones(3, 16, 1, 1), stem() + "lora_B.weight": torch.ones(16, 3, 1, 1)},
        "[3, 16, 1, 1]",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    tensors, message = TENSORS[case]
    base, tuned = llama_folder(tmp_path / "base"), write_adapter(tmp_path / "tuned", tensors)
    with pytest.raises(ModelError, match="the adapter tuned") as refused:
        load(base, device="cpu", adapter=tuned)
    assert message in str(refused.value)


def test_an_update_of_one_of_two_tied_tensors_is_refused(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base", tie_word_embeddings=True)
    table = load_file(base / "model.safetensors")["model.embed_tokens.weight"] + 1
    tuned = write_adapter(tmp_path / "one", {"base_model.model.lm_head.weight": table})
    with pytest.raises(ModelError, match="is tied to lm_head.weight"):
        load(base, device="cpu", adapter=tuned)
    names = ("base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight")
    tuned = write_adapter(tmp_path / "two", {name: table.clone() for name in names})
    assert torch.equal(load(base, device="cpu", adapter=tuned).decoder.embedding, table)


@pytest.mark.filterwarnings("ignore")
def test_an_embedding_that_is_the_head_of_another_librarys_model_is_refused(tmp_path: Path) -> None:
    adapter = {"target_modules": ["wte"], "fan_in_fan_out": True}
    base, tuned, _ = trained("GPT2", GPT2, adapter, tmp_path)
    with pytest.raises(ModelError, match="tied to the head"):
        load_any(base, device="cpu", adapter=tuned)


def test_folders_without_an_adapter_are_refused_by_name(tmp_path: Path) -> None:
    base = llama_folder(tmp_path / "base")
    with pytest.raises(ModelError, match="is no adapter: it has no adapter_config.json"):
        load(base, adapter=base)
    with pytest.raises(ModelError, match="there is no adapter 'tuned'"):
        load(base, adapter="tuned")
    with pytest.raises(ModelError, match="tiny-llama-idlm is a draft module, and no adapter") as drafter:
        load(base, adapter="tiny-llama-idlm")
    assert 'sampler="idlm:name=tiny-llama-idlm"' in str(drafter.value.hint)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ModelError, match="the adapter empty has no weights"):
        load(base, adapter=tmp_path / "empty")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_an_adapter_in_the_folder_is_merged_or_refused(kind: str, tmp_path: Path) -> None:
    """transformers, where PEFT is installed, loads such a folder with its adapter."""
    settings = GPT2 if kind == "GPT2" else {"num_key_value_heads": 2}
    targets = ["c_attn"] if kind == "GPT2" else ["q_proj"]
    base, tuned, _ = trained(kind, settings, {"target_modules": targets, "fan_in_fan_out": kind == "GPT2"}, tmp_path)
    both = Path(shutil.copytree(base, tmp_path / "both"))
    for file in tuned.iterdir():
        shutil.copy(file, both)
    tokens = torch.arange(3, 23).view(2, 10)
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(both)(tokens).logits
        assert (transformers.AutoModelForCausalLM.from_pretrained(base)(tokens).logits - expected).abs().max() > 1e-3
    for ask in (load_any, describe):
        with pytest.raises(
            ModelError, match=r"both holds a checkpoint and an adapter \(adapter_config.json\)"
        ) as error:
            ask(both)
        assert f'adapter="{both}"' in str(error.value.hint)
    torch.testing.assert_close(
        pardec.load(both, device="cpu", adapter=both).logits(tokens), expected, rtol=1e-4, atol=1e-4
    )
    with pytest.raises(ModelError, match="tuned holds an adapter and no checkpoint") as error:
        load_any(tuned)
    assert f'load {base} with adapter="{tuned}"' in str(error.value.hint)


LAYERS = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
INCOMPLETE: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "a layer": (LAYERS[:1], {"target_modules": ["q_proj"]}, r"lacks model\.layers\.1\.self_attn\.q_proj"),
    "a layer, by a pattern": (
        LAYERS[1:],
        {"target_modules": r".*\.q_proj"},
        r"lacks model\.layers\.0\.self_attn\.q_proj",
    ),
    "a layer that is named": (
        LAYERS[:1],
        {"target_modules": ["q_proj"], "layers_to_transform": [0, 1], "layers_pattern": "layers"},
        r"lacks model\.layers\.1\.self_attn\.q_proj",
    ),
    "what is saved whole": (LAYERS, {"modules_to_save": ["lm_head"]}, "lacks lm_head"),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_an_adapter_that_lacks_what_its_config_targets_is_refused(case: str, tmp_path: Path) -> None:
    modules, changes, message = INCOMPLETE[case]
    base = llama_folder(tmp_path / "base")
    tuned = write_adapter(tmp_path / "tuned", pairs(llama_tensors(llama_config()), modules), **changes)
    with pytest.raises(ModelError, match=rf"the adapter tuned {message}"):
        load(base, device="cpu", adapter=tuned)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj"], "layers_to_transform": 0},
        {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ["layers"]},
        {"target_modules": ["q_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
        {"target_modules": ["q_proj"], "exclude_modules": r".*\.1\..*"},
        {"target_modules": r".*\.0\..*q_proj"},
        {"target_modules": LAYERS[:1], "layers_to_transform": [1]},  # whole names are of any layer
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_layers_that_a_config_leaves_out_are_not_missed(changes: dict[str, Any], tmp_path: Path) -> None:
    tensors = llama_tensors(llama_config())
    halves = pairs(tensors, LAYERS[:1])
    base, tuned = llama_folder(tmp_path / "base"), write_adapter(tmp_path / "tuned", halves, **changes)
    merged = write_checkpoint(tmp_path / "merged", llama_config(), naive(tensors, halves, LAYERS[:1]))
    same_logits(base, tuned, merged)


def test_an_adapter_that_may_not_be_meant_for_a_model_is_merged_with_a_warning(tmp_path: Path) -> None:
    base, halves = llama_folder(tmp_path / "base"), pairs(llama_tensors(llama_config()), LAYERS)
    for number, (changes, message) in enumerate(
        (
            ({"base_model_name_or_path": "the/other-base"}, "was trained on the/other-base .* merged into base"),
            ({"target_modules": ["q_proj", "v_proj"]}, r"has no tensors for model\.layers\.0\.self_attn\.v_proj"),
            ({"use_something_new": True}, "use_something_new"),
        )
    ):
        with pytest.warns(UserWarning, match=message):
            load(base, device="cpu", adapter=write_adapter(tmp_path / f"tuned{number}", halves, **changes))
    assert same_base("/hub/models--org--Base/snapshots/0123", "base")


def test_every_setting_of_peft_is_read_passed_over_or_refused() -> None:
    assert {field.name for field in fields(peft.LoraConfig)} == set(_KNOWN) | set(_FOREIGN)
