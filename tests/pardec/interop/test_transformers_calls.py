"""Calls of transformers' generate on a tiny Llama: with `custom_generate` each is followed exactly, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache

from pardec.interop.transformers import generate
from pardec.models.errors import ModelError, SpecError
from pardec.models.hf.causal_lm import HFAdapter
from pardec.models.plan import Plan, Visible
from tests.pardec.interop.tiny_llama import IDS, both, llama, new, same

# --- positions ---


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_positions_are_obeyed_where_they_count_and_refused_elsewhere(kind: str) -> None:
    """transformers passes the mask as None if it hides nothing; position_ids are then checked all the same."""
    model = new(kind, **({"n_embd": 32, "n_layer": 2, "n_head": 4} if kind == "GPT2" else {}))
    count = torch.arange(8)
    for fine in (count.expand(3, -1), count[None]):
        same(model, position_ids=fine)
        same(model, position_ids=fine, attention_mask=None)
    uneven = torch.cat((count[:4], count[4:] + 20))
    per_row = torch.stack([count, count, count + 1])
    for other in (uneven.expand(3, -1), count.expand(3, -1) + 5, per_row, count.flip(0)[None]):
        for mask in (torch.ones_like(IDS), None):
            with pytest.raises(SpecError, match="position_ids do not count the tokens") as error:
                both(model, position_ids=other, attention_mask=mask)[1]
            assert error.value.hint


@pytest.mark.parametrize("named", ["sliding_window", "attention_chunk_size"])
def test_a_window_that_only_transformers_cache_obeys_ends_what_is_decoded(named: str) -> None:
    """The model ignores the window in its config; the cache that generate makes from the config follows it."""
    model = new(**{named: 12})
    same(model, max_new_tokens=4)
    with pytest.raises(SpecError, match="needs 28 positions and LlamaForCausalLM has 12"):
        both(model)


# --- hooks ---


def rolled(module: Any, options: Any, out: Any) -> Any:
    out.logits = out.logits.roll(1, -1)
    return out


@pytest.mark.parametrize("before", [False, True], ids=["after the first call", "before the first call"])
@pytest.mark.parametrize("kind", ["forward", "pre"])
@pytest.mark.covers(1)
def test_hooks_on_the_model_itself_are_refused_whenever_they_come(kind: str, before: bool) -> None:
    model = new()
    if not before:
        same(model)
    handle = (
        model.register_forward_hook(rolled)
        if kind == "forward"
        else model.register_forward_pre_hook(lambda module, options: None)
    )
    with pytest.raises(SpecError, match=r"1 forward hook on the LlamaForCausalLM itself") as error:
        both(model)
    assert "model.model" in error.value.hint
    handle.remove()
    same(model)


def test_hooks_on_parts_of_the_model_run() -> None:
    model = new()
    plain = same(model)
    calls: list[int] = []
    for part, hook in (
        (model.lm_head, lambda module, options, out: out.roll(1, -1)),
        (model.model.layers[0], lambda module, options, out: out * 1.5),
        (model.model.embed_tokens, lambda module, options, out: out + 0.3),
        (model.model, lambda module, options, out: calls.append(1)),
    ):
        handle = part.register_forward_hook(hook)
        made = same(model)
        assert calls or not torch.equal(made, plain)
        handle.remove()
    assert torch.equal(same(model), plain)


def test_a_hook_that_reads_more_than_a_token_is_found_when_it_comes() -> None:
    model = new()
    same(model)
    ramp = model.model.layers[0].register_forward_hook(
        lambda module, options, out: out * torch.linspace(0.2, 3, out.shape[1])[:, None]
    )
    with pytest.raises(ModelError, match="logits with .* differ"):
        both(model)
    ramp.remove()
    same(model)


def test_a_forward_that_was_put_in_is_found_unless_it_changes_nothing() -> None:
    model = new()
    same(model)
    own = model.forward
    model.forward = lambda *options, **named: own(*options, **named)
    same(model)
    model.forward = lambda *options, **named: rolled(None, None, own(*options, **named))
    with pytest.raises(ModelError, match="logits with .* differ"):
        both(model)
    del model.forward
    same(model)


# --- weights that change, and how the model is run ---


def test_weights_as_they_are_in_each_call() -> None:
    model, other = new(), new()
    seen = [same(model)]
    with torch.no_grad():
        low = torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
        model.model.layers[0].self_attn.q_proj.weight.add_(low.T @ low)  # as an adapter is merged
    seen.append(same(model))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.2)
    model.load_state_dict(other.state_dict())
    seen.append(same(model))
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.roll(1, 0))
    seen.append(same(model))
    model.model.layers[0].mlp = new().model.layers[0].mlp
    seen.append(same(model))
    assert len({tuple(each.flatten().tolist()) for each in seen}) == len(seen)
    same(model.to(torch.float64))
    expected, made = both(model.to(torch.bfloat16), max_new_tokens=2)  # later ones may tie in so few digits
    assert torch.equal(made, expected)


def test_a_layer_of_another_model_attends_by_that_models_config_and_is_refused() -> None:
    model, other = new(), new()
    same(model)
    model.model.layers[0] = other.model.layers[0]
    with pytest.raises(ModelError, match=r"layers \[0\] do not attend"):
        both(model)
    loaded = HFAdapter(other, "other")
    ids = IDS[:1]
    loaded(Plan.full(ids, Visible.causal()))
    other.model.layers[1] = new().model.layers[1]
    with pytest.raises(ModelError, match=r"layers \[1\] do not attend"):
        loaded(Plan.full(ids, Visible.causal()))


def test_autocast_is_refused() -> None:
    model = new()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SpecError, match="autocast is on"):
        both(model)
    same(model)


def test_a_part_in_training_mode_is_refused() -> None:
    model = new(attention_dropout=0.0)
    model.model.layers[0].mlp.drop = nn.Dropout(0.1).train()  # as an adapter is put into a model in evaluation mode
    with pytest.raises(SpecError, match="a module of the model is in training mode"):
        both(model)
    model.eval()
    same(model)


# --- the rest of a call ---


FINE: dict[str, dict[str, Any]] = {
    "no cache": {"use_cache": False},
    "a static cache": {"cache_implementation": "static"},
    "a dynamic cache": {"cache_implementation": "dynamic"},
    "prefill in parts": {"prefill_chunk_size": 3},
    "one logit": {"logits_to_keep": 1},
    "a negative prompt without guidance": {"negative_prompt_ids": IDS},
    "a watermark": {"watermarking_config": lambda: transformers.WatermarkingConfig(bias=4.0)},
    "what is asked of an output that is not": {"output_scores": True},
    "several at once": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 5},
}


@pytest.mark.parametrize("what", FINE)
def test_what_is_obeyed(what: str) -> None:
    same(**FINE[what])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "states": ({"inputs_embeds": lambda: llama().get_input_embeddings()(IDS)}, "the model is given inputs_embeds"),
    "labels": ({"labels": IDS}, "the model is given labels"),
    "attentions": ({"output_attentions": True}, "the model is given output_attentions"),
    "a cache": ({"past_key_values": lambda: DynamicCache()}, "past_key_values is given"),
    "an offloaded cache": ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
    "an offloaded static cache": (
        {"cache_implementation": "offloaded_static"},
        "cache_implementation='offloaded_static'",
    ),
    "a hole": ({"attention_mask": torch.tensor([[1, 0, 1, 1, 1, 1, 1, 1]] * 3)}, "attention_mask has gaps"),
    "right padding": ({"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0]] * 3)}, "padding on the right"),
    "a mask of another shape": ({"attention_mask": torch.tensor([[0, 1, 1]] * 3)}, "attention_mask is"),
    "beams": ({"num_beams": 3}, "beam search"),
    "guidance": ({"guidance_scale": 2.0, "negative_prompt_ids": IDS}, "UnbatchedClassifierFreeGuidance"),
    "kept scores": ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is not supported"),
    "kept states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    arguments, says = REFUSED[what]
    options = {"attention_mask": torch.ones_like(IDS), **arguments}
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(SpecError, match=says) as error:
        llama().generate(IDS, max_new_tokens=4, do_sample=False, custom_generate=generate, sampler="lookup", **options)
    assert error.value.hint


def test_an_encoder_is_refused() -> None:
    shape = {"vocab_size": 31, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**shape, decoder_start_token_id=0, pad_token_id=0)
    ).eval()
    with pytest.raises(SpecError, match="has an encoder"):
        model.generate(IDS, max_new_tokens=4, custom_generate=generate, sampler="lookup")
