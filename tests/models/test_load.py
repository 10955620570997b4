from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import pardec
from pardec.models import load as load_module
from pardec.models.errors import ModelError, PardecError, UnknownModelError
from pardec.models.families import FAMILIES
from pardec.models.files import catalog
from pardec.models.layers.rope import default_frequencies
from pardec.models.load import embedded_names, load
from pardec.models.loading.recognition import describe
from pardec.models.loading.update import load_weights
from pardec.models.parallel import placement
from pardec.models.plan import Plan
from tests import fresh
from tests.models.toys import llama_config, llama_folder, llama_tensors, rewrite, write_checkpoint


def logits(model):
    return model.forward(Plan.full(torch.arange(8)[None], model.visible())).logits()


def test_a_folder_is_loaded_and_described(tmp_path):
    model = load(llama_folder(tmp_path / "mine"))
    assert (model.name, model.family, model.vocab_size, model.layers, model.width) == ("mine", "llama", 40, 2, 16)
    assert (model.max_positions, model.limit, model.tokenizer) == (64, None, None)
    assert (model.decoding_config.eos_ids, model.decoding_config.bos_id, model.decoding_config.pad_id) == ((3,), 2, 3)
    assert model.path == tmp_path / "mine"
    if model.device.type == "cpu":
        assert model.describe() == (
            "mine: llama by model_type 'llama' and architecture 'LlamaForCausalLM', on cpu (no GPU found), "
            "float32 (default on a CPU)"
        )


def test_embedded_models_are_found_by_name(tmp_path, monkeypatch):
    llama_folder(tmp_path / "tiny-a")
    llama_folder(tmp_path / "tiny-b")
    (tmp_path / "tokenizer").mkdir()
    for module in (catalog, sys.modules["pardec.models.files.sources"]):
        monkeypatch.setattr(module, "EMBEDDED", tmp_path)
    assert embedded_names() == ["tiny-a", "tiny-b"]
    assert load("tiny-b", device="cpu").path == tmp_path / "tiny-b"
    with pytest.raises(UnknownModelError, match=r"unknown model 'tiny-c' \(did you mean 'tiny-[ab]'") as error:
        load("tiny-c")
    assert "tiny-a, tiny-b" in str(error.value.hint)
    assert isinstance(error.value, LookupError)


def test_shards_and_pickles_hold_the_same_model(tmp_path):
    expected = logits(load(llama_folder(tmp_path / "whole"), device="cpu"))
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    names = sorted(tensors)
    config = (tmp_path / "whole" / "config.json").read_text()
    halves = {"a": names[::2], "b": names[1::2]}
    for kind, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        folder = tmp_path / suffix
        folder.mkdir()
        (folder / "config.json").write_text(config)
        where = {}
        for part, some in halves.items():
            file = f"{kind}-{part}.{suffix}"
            held = {name: tensors[name] for name in some}
            save_file(held, folder / file) if suffix == "safetensors" else torch.save(held, folder / file)
            where |= dict.fromkeys(some, file)
        (folder / f"{kind}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
        assert torch.equal(logits(load(folder, device="cpu")), expected)
    single = tmp_path / "single"
    single.mkdir()
    (single / "config.json").write_text(config)
    torch.save(tensors, single / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(logits(load(single, device="cpu")), expected)


@pytest.mark.parametrize("parts", [["model.safetensors"], ["model-1.safetensors", "model-2.safetensors"]])
def test_a_single_file_beside_an_index_without_its_parts_is_loaded(parts, tmp_path):
    expected = logits(load(llama_folder(tmp_path), device="cpu"))
    index = {"weight_map": dict(enumerate(parts))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"a part that was left")
    assert torch.equal(logits(load(tmp_path, device="cpu")), expected)


def test_harmless_tensors_are_passed_over(tmp_path):
    config = llama_config(tie_word_embeddings=True)
    tensors = llama_tensors(config)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    own = default_frequencies(config.get("rope_theta", 10000.0), head_dim)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = own.half()
    model = load(write_checkpoint(tmp_path, config, tensors), device="cpu")
    assert model.decoder.head.weight is model.decoder.embed.weight


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_tied_head_that_differs_from_the_embedding_is_used(stored, tmp_path):
    config = llama_config(tie_word_embeddings=True)
    tensors = {name: tensor.to(stored) for name, tensor in llama_tensors(config).items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][7, 3] += 1
    model = load(write_checkpoint(tmp_path, config, tensors), device="cpu", dtype="float32")
    assert torch.equal(model.decoder.head.weight, tensors["lm_head.weight"].float())
    assert torch.equal(model.decoder.embed.weight, tensors["model.embed_tokens.weight"].float())
    new = {name: tensor * 2 for name, tensor in tensors.items()}
    load_weights(model, new)  # its two tensors stay two
    assert torch.equal(model.decoder.head.weight, new["lm_head.weight"].float())


def test_a_tied_embedding_may_be_published_as_the_head_alone(tmp_path):
    config = llama_config(tie_word_embeddings=True)
    tensors = {name: tensor for name, tensor in llama_tensors(config).items() if name != "lm_head.weight"}
    expected = logits(load(write_checkpoint(tmp_path / "one", config, tensors), device="cpu"))
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    assert torch.equal(logits(load(write_checkpoint(tmp_path / "other", config, tensors), device="cpu")), expected)


def test_rotary_frequencies_of_another_model_are_refused(tmp_path):
    config = llama_config()
    tensors = llama_tensors(config)
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.rotary_emb\.inv_freq does not match the rotary"):
        load(write_checkpoint(tmp_path, config, tensors), device="cpu")


def test_tensors_that_do_not_match_are_named(tmp_path):
    config = llama_config(num_hidden_layers=3)
    tensors = llama_tensors(config)
    for name in [name for name in tensors if "layers.2." in name] + ["model.norm.weight"]:
        del tensors[name]
    tensors["model.layers.0.self_attn.o_proj.bias"] = torch.ones(16)
    tensors["lm_head.weight"] = torch.ones(41, 16)
    tensors["model.embed_tokens.weight"] = torch.ones(40, 16, dtype=torch.int8)
    with pytest.raises(ModelError) as error:
        load(write_checkpoint(tmp_path, config, tensors), device="cpu")
    text = str(error.value)
    assert "10 missing: model.norm.weight, model.layers.2.input_layernorm.weight" in text or "10 missing: " in text
    assert "model.layers.2.mlp.down_proj.weight" in text
    assert "1 not known: model.layers.0.self_attn.o_proj.bias" in text
    assert "1 of the wrong shape: lm_head.weight [41, 16] instead of [40, 16]" in text
    assert "1 not floating-point: model.embed_tokens.weight" in text
    assert "\n" not in text


def test_long_lists_of_names_are_cut(tmp_path):
    config = llama_config()
    tensors = llama_tensors(config) | {f"extra.{index:02}": torch.ones(1) for index in range(13)}
    with pytest.raises(ModelError, match=r"13 not known: extra.00, .*extra.09 and 3 more"):
        load(write_checkpoint(tmp_path, config, tensors), device="cpu")


def _weights(data=None, file="model.safetensors"):
    """Replaces the weights by a file of other content."""

    def damage(folder):
        (folder / "model.safetensors").unlink()
        if data is not None:
            (folder / file).write_bytes(data)

    return damage


def _shards(folder):
    """Leaves the weights in shards without an index."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")


def _pickled(state):
    def damage(folder):
        (folder / "model.safetensors").unlink()
        torch.save(state, folder / "pytorch_model.bin")

    return damage


def _indexed(weight_map, *files):
    """Copies the weights to `files`, and writes an index of them."""

    def damage(folder):
        weights = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").unlink()
        for file in files:
            (folder / file).write_bytes(weights)
        index = {"weight_map": weight_map} if weight_map else {}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return damage


def _twice(folder):
    """Writes the weights in parts too, beside the single file."""
    weights = (folder / "model.safetensors").read_bytes()
    _indexed(_SHARDS, *_SHARDS.values())(folder)
    (folder / "model.safetensors").write_bytes(weights)


def _config(text="", **changes):
    return lambda folder: (folder / "config.json").write_text(text or json.dumps(llama_config(**changes)))


def _linked(file):
    """A link to nothing in a file's place, as in a snapshot of the hub that was copied without its blobs."""

    def damage(folder):
        (folder / file).unlink(missing_ok=True)
        (folder / file).symlink_to("../../blobs/0")

    return damage


_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
_ANOTHER_TYPE = _config(model_type="llama9", architectures=["Llama9"])
_SHARDS = {"a": "model-1.safetensors", "b": "model-2.safetensors"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (_config("{"), "is not valid JSON"),
        (_config("[]"), "does not hold a JSON object"),
        (_ANOTHER_TYPE, "model_type 'llama9' with architecture 'Llama9', which no family matches"),
        (_config("{}"), "no model_type, which no family matches"),
        (_config(quantization_config={"bits": 4}), "is quantized by None"),
        (
            _config(num_key_value_heads=2, num_attention_heads=3, hidden_size=15),
            "does not describe a llama model: .*even rotary dimension",
        ),
        (_weights(), "has a config.json but no weights"),
        (_shards, "has weight files and no index that lists them: model-00001-of-00002.safetensors"),
        (lambda folder: os.truncate(folder / "model.safetensors", 9000), "model.safetensors is damaged or cut short"),
        (_weights(b"not a weight file"), "model.safetensors is damaged or cut short"),
        (_weights(_POINTER), "model.safetensors is a pointer of Git LFS"),
        (_weights(_POINTER, "pytorch_model.bin"), "pytorch_model.bin is a pointer of Git LFS"),
        (_linked("model.safetensors"), "model.safetensors is a link to a file that is not there"),
        (_linked("generation_config.json"), "generation_config.json is a link to a file that is not there"),
        (_linked("config.json"), "config.json is a link to a file that is not there"),
        (lambda folder: (folder / "config.json").write_bytes(_POINTER), "config.json is a pointer of Git LFS"),
        (_weights(b"no pickle", "pytorch_model.bin"), "pytorch_model.bin cannot be read"),
        (_pickled({"a": subprocess.Popen}), "pytorch_model.bin cannot be read"),
        (_pickled({"state": {"a": torch.ones(1)}}), "does not hold a plain dictionary of tensors"),
        (_indexed(_SHARDS, _SHARDS["a"]), "1 of 2 weight files are missing: model-2.safetensors"),
        (_indexed(None), "cannot be read as a weight index"),
        (_indexed({"a": "../model.safetensors"}), "names files outside its folder"),
        (_indexed(_SHARDS, *_SHARDS.values()), "is in model-1.safetensors and again in model-2.safetensors"),
        (_twice, "holds its weights twice: in model.safetensors, and in the 2 files of model.safetensors.index.json"),
    ],
)
def test_a_broken_checkpoint_is_one_clear_line(damage, message, tmp_path):
    folder = llama_folder(tmp_path)
    damage(folder)
    with pytest.raises(ModelError, match=message) as error:
        load(folder, device="cpu")
    assert "\n" not in str(error.value)
    assert error.value.hint
    if "JSON" in message:
        assert error.value.hint == "correct it, or download or copy the file again"


def test_no_family_lists_the_families_and_the_adapter(tmp_path):
    folder = llama_folder(tmp_path)
    _ANOTHER_TYPE(folder)
    with pytest.raises(ModelError) as error:
        load(folder)
    assert f"families: {', '.join(sorted(FAMILIES))}; other causal LMs" in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "name is empty"),
        ("./nowhere", r"there is no folder ./nowhere"),
        ("/no/such/folder", "there is no folder /no/such/folder"),
        ("~/no/such/folder", "there is no folder ~/no/such/folder"),
        ("nothing-like-it", "unknown model 'nothing-like-it'"),
    ],
)
def test_unknown_names_are_refused(name, message):
    with pytest.raises(UnknownModelError, match=message) as error:
        load(name)
    assert "hub id" in str(error.value.hint)


def test_a_file_is_not_a_model(tmp_path):
    folder = llama_folder(tmp_path)
    with pytest.raises(ModelError, match="is a file"):
        load(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu9"}, "unknown device 'gpu9'"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"dtype": torch.int8}, "dtype int8 cannot be used for computation"),
        ({"mask_id": 4}, "mask_id=4 was given, but llama models are not masked"),
        ({"block": 4}, "block=4 was given, but llama models are not block-causal"),
        ({"device_map": "spread"}, "unknown device_map 'spread'"),
        ({"device_map": {"embed": "cpu"}}, "has no device for head.weight"),
        ({"device_map": {"": "disk"}}, "not kept on disk"),
        ({"device": "cpu", "cuda_graphs": True}, "cuda_graphs needs a CUDA device, and .* would run on cpu"),
        ({"device_map": "auto", "cuda_graphs": True}, "cuda_graphs and device_map=auto cannot be combined"),
        ({"tp": True, "cuda_graphs": True}, "tp and cuda_graphs=True cannot be combined"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(PardecError, match=message):
        load(llama_folder(tmp_path), **arguments)


def test_half_precision_is_kept_when_asked_and_widened_on_a_cpu(tmp_path):
    config = llama_config()
    tensors = {name: tensor.bfloat16() for name, tensor in llama_tensors(config).items()}
    folder = write_checkpoint(tmp_path, config, tensors)
    wide = load(folder, device="cpu")
    assert wide.dtype == torch.float32
    assert wide.describe().endswith("float32 (default on a CPU; stored as bfloat16)")
    narrow = load(folder, device="cpu", dtype="bfloat16")
    assert narrow.dtype == narrow.decoder.embed.weight.dtype == torch.bfloat16
    torch.testing.assert_close(logits(narrow), logits(wide), rtol=0.1, atol=0.1)


def test_device_map_auto_runs_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = llama_folder(tmp_path, tie_word_embeddings=True)
    model = load(folder, device="cpu", device_map="auto")
    assert "spread by device_map over cpu" in model.describe()
    assert torch.equal(logits(model), logits(load(folder, device="cpu")))
    cache = model.new_cache(1, 8)
    plan = Plan.full(torch.arange(8)[None], model.visible())
    assert torch.equal(model.forward(plan, cache).logits(), logits(model))


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("no"), RuntimeError("can't allocate memory")])
def test_running_out_of_memory_says_how_much_was_needed(error, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(load_module, "_native", fail)
    with pytest.raises(ModelError, match=r"out of memory while loading .* 0\.0 GiB in float32") as boosted:
        load(llama_folder(tmp_path), device="cpu")
    assert 'device_map="auto"' in str(boosted.value.hint)


def test_other_runtime_errors_are_not_hidden():
    def fail():
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        placement.guarded("x", fail, {}, torch.float32)


_PEAK = """
from pardec.models.load import load
import transformers.models.llama.configuration_llama, transformers.modeling_rope_utils, accelerate

def memory(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024

load("tiny-llama", device="cpu")  # a forked process has the libraries' pages once it has used them
before = memory("VmRSS")
model = load(FOLDER, device="cpu")
weights = sum(parameter.nbytes for parameter in model.decoder.parameters())
print((memory("VmHWM") - before) / weights, weights)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_stays_near_the_size_of_the_weights(tmp_path):
    config = llama_config(hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12)
    config |= {"num_key_value_heads": 12, "vocab_size": 8000}
    folder = write_checkpoint(tmp_path, config, llama_tensors(config))
    code = _PEAK.replace("FOLDER", repr(str(folder)))
    [done] = fresh.results([{"language": "python", "code": code}], tmp_path)
    assert done["code"] == 0, done["told"]
    ratio, weights = map(float, done["told"].split())
    assert weights > 200e6
    assert ratio < 1.5, ratio


def test_a_mask_token_by_sdlms_key_is_refused_too(tmp_path):
    config = llama_config(text_mask_token_id=5)
    write_checkpoint(tmp_path, config, llama_tensors(config))
    with pytest.raises(ModelError, match="config.json of .* has text_mask_token_id=5: it is a masked model"):
        load(tmp_path, device="cpu")
    assert not load(tmp_path, device="cpu", attention="causal").decoding_config.masked


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral"])
def test_a_masked_model_published_as_an_autoregressive_one_is_refused(file, model_type, tmp_path):
    config = llama_config(model_type=model_type)
    tensors = llama_tensors(config)
    if model_type == "qwen2":
        for name in [name for name in tensors if re.search(r"\.[qkv]_proj\.weight", name)]:
            tensors[name.replace("weight", "bias")] = tensors[name][:, 0].clone()
    write_checkpoint(tmp_path, config, tensors)
    rewrite(tmp_path, file, mask_token_id=5)
    with pytest.raises(ModelError, match=rf"{file} of .* has mask_token_id=5: it is a masked model") as error:
        load(tmp_path, device="cpu")
    assert 'attention="bidirectional"' in str(error.value.hint)
    with pytest.raises(ModelError, match="it is a masked model"):
        describe(tmp_path)
    assert not load(tmp_path, device="cpu", attention="causal").decoding_config.masked
    model = load(tmp_path, device="cpu", attention="bidirectional")
    assert (model.decoding_config.mask_id, model.decoding_config.shift, model.decoding_config.masked) == (5, 1, True)
    assert load(tmp_path, device="cpu", attention="bidirectional", shift=0, mask_id=7).decoding_config.mask_id == 7
    assert load(tmp_path, device="cpu", attention="block-causal", block=4).decoding_config.block == 4
    with pytest.raises(ModelError, match="the block length of"):
        load(tmp_path, device="cpu", attention="block-causal")
    with pytest.raises(ModelError, match="needs the id of its mask token"):
        load(llama_folder(tmp_path / "plain"), device="cpu", attention="bidirectional")


def said_of_masks(folder):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load(folder, device="cpu")
        describe(folder)
    return [str(each.message) for each in said if "mask token" in str(each.message)]


def with_tokens(folder, *tokens, **settings):
    """A Llama folder with the embedded tokenizer, plus special `tokens`, and with other tokenizer settings."""
    config = llama_config(vocab_size=400)
    write_checkpoint(folder, config, llama_tensors(config))
    shutil.copytree(catalog.TOKENIZER, folder, dirs_exist_ok=True)
    rewrite(folder, "tokenizer_config.json", **{"mask_token": None} | settings)
    words = json.loads((folder / "tokenizer.json").read_text())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for number, token in enumerate(tokens, 370):
        words["added_tokens"].append({"id": number, "content": token, "special": True, **plain})
    (folder / "tokenizer.json").write_text(json.dumps(words))
    return folder


@pytest.mark.parametrize(
    ("tokens", "settings", "token"),
    [((), {"mask_token": "<mask>"}, "<mask>"), (("<|mask|>",), {}, "<|mask|>"), (("[MASK]",), {}, "[MASK]")],
)
def test_a_mask_token_that_only_the_tokenizer_names_is_said_in_one_line(tokens, settings, token, tmp_path):
    folder = with_tokens(tmp_path, *tokens, **settings)
    said = said_of_masks(folder)
    assert len(said) == 2  # load and describe
    assert f"{token!r} (id " in said[0]
    assert 'attention="bidirectional"' in said[0]
    number = int(re.search(r"mask_id=(\d+)", said[0])[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masked = load(folder, device="cpu", attention="bidirectional", mask_id=number, shift=0)
        assert not load(folder, device="cpu", attention="causal").decoding_config.masked
    assert masked.decoding_config.mask_id == number
    rewrite(folder, architectures=["LlamaForMaskedDiffusion"])
    with pytest.raises(ModelError, match="it is a masked model, published as an autoregressive one"):
        load(folder, device="cpu")


def test_a_tokenizer_without_a_mask_token_is_loaded_without_a_word(tmp_path):
    assert not said_of_masks(with_tokens(tmp_path / "a", "<|fim_middle|>", "<|mask_start|>"))
    assert not said_of_masks("tiny-llama")  # its tokenizer is shared with masked models


def test_a_masked_model_of_a_native_family_is_loaded_as_one(tmp_path):
    config = llama_config(mask_token_id=5, is_causal=False)
    folder = write_checkpoint(tmp_path, config, llama_tensors(config))
    model = pardec.load(folder, device="cpu", attention="bidirectional", shift=0)
    settings = {name: value for name, value in config.items() if name not in ("mask_token_id", "is_causal")}
    (tmp_path / "illada").mkdir()
    write_checkpoint(
        tmp_path / "illada", settings | {"model_type": "illada", "mask_token_id": 5}, llama_tensors(config)
    )
    known = pardec.load(tmp_path / "illada", device="cpu")
    assert torch.equal(model.logits(torch.arange(9)[None]), known.logits(torch.arange(9)[None]))
    more = {"input_ids": [[7, 8]], "max_new_tokens": 4, "sampler": "sequential"}
    assert model.generate(**more).tokens == known.generate(**more).tokens
