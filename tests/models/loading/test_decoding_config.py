from __future__ import annotations

import pytest

from pardec.models.errors import ModelError
from pardec.models.families import FAMILIES, match
from pardec.models.load import load
from pardec.models.loading.decoding_config import Overrides, build_decoding_config, check_class
from pardec.models.loading.recognition import describe
from tests.models.toys import llama_folder


class Words:
    """A tokenizer with the attributes that `decoding_config` reads."""

    def __init__(self, words, **special):
        self.words = words
        self.mask_token_id = special.get("mask")
        self.pad_token_id = special.get("pad")
        self.bos_token_id = special.get("bos")
        self.eos_token_id = special.get("eos")

    def get_vocab(self):
        return self.words

    def convert_ids_to_tokens(self, number):
        return {value: key for key, value in self.words.items()}.get(number)


def decoding_config(family, config, generation=None, tokenizer=None, vocab=200000, name="", **overrides):
    settings = {"vocab": vocab, "name": name, "overrides": Overrides(**overrides)}
    return build_decoding_config(FAMILIES[family], config, generation or {}, tokenizer, **settings)


def test_the_mask_id_is_looked_for_in_order():
    named = {"mask_token_id": 7}
    words = Words({"<|mask|>": 9}, mask=11)
    assert decoding_config("dream", named, tokenizer=words, mask_id=5).mask_id == 5
    with pytest.warns(UserWarning, match="7 in config.json, which is used, and 11 in the tokenizer"):
        assert decoding_config("dream", named, tokenizer=words).mask_id == 7
    assert decoding_config("dream", {}, {"mask_token_id": None}, words).mask_id == 9
    assert decoding_config("dream", {}, tokenizer=Words({}, mask=11)).mask_id == 11
    assert decoding_config("dream", {}).mask_id == 151666
    assert decoding_config("sdar", {}, tokenizer=Words({"<|MASK|>": 8})).mask_id == 8
    assert decoding_config("sdar", {}).mask_id == 151669
    assert decoding_config("fast_dllm_v2", {}).mask_id == 151665
    assert decoding_config("llada", {}).mask_id == 126336


def test_files_that_name_two_mask_ids_are_refused():
    assert decoding_config("dream", {"mask_token_id": 7}, {"mask_token_id": 7}).mask_id == 7
    with pytest.raises(ModelError, match="7 in config.json and 8 in generation_config.json"):
        decoding_config("dream", {"mask_token_id": 7}, {"mask_token_id": 8})
    assert decoding_config("dream", {"mask_token_id": 7}, {"mask_token_id": 8}, mask_id=5).mask_id == 5
    assert decoding_config("sdlm", {"mask_token_id": 7, "text_mask_token_id": 8}).mask_id == 8  # SDLM's own key


def test_a_mask_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ModelError, match="mask id 126336 lies outside the vocabulary of 160") as error:
        decoding_config("llada", {}, vocab=160)
    assert "mask_token_id" in str(error.value.hint)
    with pytest.raises(ModelError, match="mask id 160 lies outside") as error:
        decoding_config("llada", {}, vocab=160, mask_id=160)
    assert "must be below 160" in str(error.value.hint)


def test_end_tokens_come_from_the_configs_and_the_family():
    assert decoding_config("llada", {"eos_token_id": 126081}).eos_ids == (126081, 126348)
    assert decoding_config("llada", {"eos_token_id": 157, "mask_token_id": 3}, vocab=160).eos_ids == (157,)
    assert decoding_config("dream", {"eos_token_id": 151643}, {"eos_token_id": [151643, 4]}).eos_ids == (
        151643,
        4,
        151645,
    )
    # A vocabulary that has something else at that id has another end of turn.
    other = Words({"hello": 151645, "<|mask|>": 3})
    assert decoding_config("dream", {"eos_token_id": 151643}, tokenizer=other).eos_ids == (151643,)
    assert decoding_config("llama", {"eos_token_id": 500}, vocab=100).eos_ids == ()


def test_end_tokens_hold_the_tokenizers_own():
    chat = Words({"<|im_end|>": 7}, eos=7)
    config = decoding_config("llama", {"eos_token_id": 2}, {"eos_token_id": [2, 3]}, chat)
    assert config.eos_ids == (2, 3, 7)
    assert config.sources["ends"] == "2 (generation_config.json), 3 (generation_config.json), 7 (the tokenizer)"
    assert decoding_config("llama", {"eos_token_id": 7}, tokenizer=chat).eos_ids == (7,)
    assert decoding_config("llama", {}, tokenizer=Words({}, eos=100), vocab=100).eos_ids == ()
    assert decoding_config("llada", {"eos_token_id": 126081}, tokenizer=Words({}, eos=5)).eos_ids == (126081, 5)


def test_padding_falls_back_to_the_end_token():
    assert decoding_config("llama", {"pad_token_id": 9, "eos_token_id": 2}).pad_id == 9
    assert decoding_config("llama", {"eos_token_id": 2}, tokenizer=Words({}, pad=4)).pad_id == 4
    assert decoding_config("llama", {"pad_token_id": -1, "eos_token_id": 2}).pad_id == 2
    assert decoding_config("llama", {}).pad_id == 0


def test_the_start_token():
    assert decoding_config("llada", {}).bos_id == 126080
    assert decoding_config("llada", {"mask_token_id": 3}, vocab=160).bos_id is None
    assert decoding_config("llama", {"bos_token_id": 1}).bos_id == 1
    assert decoding_config("llama", {}, tokenizer=Words({}, bos=6)).bos_id == 6


def test_the_block_of_block_causal_models():
    assert decoding_config("sdar", {}).block == 4
    assert decoding_config("sdar", {"block_size": 16}).block == 16
    assert decoding_config("sdar", {"block_size": 16}, block=8).block == 8
    assert decoding_config("fast_dllm_v2", {}).block == 32
    assert decoding_config("fast_dllm_v2", {"bd_size": 16}).block == 16
    assert decoding_config("llada", {}).block is None
    with pytest.raises(ModelError, match="block must be at least 1, got 0"):
        decoding_config("sdar", {}, block=0)
    with pytest.raises(ModelError, match="llada models are not block-causal"):
        decoding_config("llada", {}, block=8)


def test_every_setting_says_where_it_was_found():
    found = decoding_config("sdar", {"mask_token_id": 7}, name="SDAR-8B-Chat-b32")
    assert (found.block, found.mask_id) == (32, 7)
    assert found.sources == {
        "attention": "the family sdar",
        "shift": "the family sdar",
        "block": "the name SDAR-8B-Chat-b32",
        "mask": "config.json",
        "ends": "151645 (the family sdar)",
    }
    assert decoding_config("sdar", {"block_size": 8}, name="SDAR-8B-Chat-b32").sources["block"] == (
        "config.json: block_size"
    )
    assert decoding_config("sdar_moe", {}, name="SDAR-30B-A3B-Chat-b16").block == 16
    for name in ("SDAR-1.7B-Chat", "SDAR-8B-Chat", "TraDo-8B-Thinking", "SDAR-b1.7"):
        assert decoding_config("sdar", {}, name=name).block == 4
    asked = decoding_config("sdar", {}, name="SDAR-8B-Chat-b32", block=8, mask_id=9, shift=1)
    assert (asked.block, asked.mask_id, asked.shift) == (8, 9, 1)
    assert [asked.sources[what] for what in ("block", "mask", "shift")] == ["as asked"] * 3


def test_attention_can_be_overridden_and_a_causal_model_has_no_mask():
    found = decoding_config("nemotron", {}, attention="causal")
    assert (found.attention, found.shift, found.mask_id, found.block) == ("causal", 1, None, None)
    assert not found.masked
    assert decoding_config("nemotron", {}).masked
    with pytest.raises(ModelError, match="unknown attention 'block-casual' .did you mean 'block-causal'"):
        decoding_config("nemotron", {}, attention="block-casual")
    with pytest.raises(ModelError, match="shift=2 was given"):
        decoding_config("dream", {}, shift=2)
    with pytest.raises(ModelError, match="mask_id=5 was given, but diffusion_gemma models are not masked"):
        decoding_config("diffusion_gemma", {}, mask_id=5)


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({}, ""),
        (
            {"architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.LlamaForCausalLM"}},
            "",
        ),
        ({"architectures": ["LlamaModel"]}, ""),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}, ""),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, ""),
        ({"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}, ""),  # its code is not in transformers
        ({"architectures": ["LlamaBiForCausalLM"]}, "LlamaBiForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, "Own"),
        ({"model_type": "gpt2", "architectures": ["GPT2Own"]}, "GPT2Own"),
        ({"model_type": "Dream", "architectures": ["Own"]}, ""),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_class_whose_code_is_not_run_is_named(config, own):
    config = {"model_type": "llama", **config}
    if not own:
        check_class("x", match(config), config)
        return
    theirs = "GPT2LMHeadModel" if config["model_type"] == "gpt2" else "LlamaForCausalLM"
    with pytest.warns(UserWarning, match=f"names the class {own}, whose code is not run: it is decoded as a {theirs}"):
        check_class("x", match(config), config)


def test_loading_names_such_a_class(tmp_path):
    folder = llama_folder(tmp_path / "model", architectures=["Own"])
    with pytest.warns(UserWarning, match="config.json of model names the class Own"):
        load(folder, device="cpu")
    with pytest.warns(UserWarning, match="config.json of model names the class Own"):
        describe(folder)
