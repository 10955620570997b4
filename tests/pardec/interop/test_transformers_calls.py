"""Calls of transformers' generate on a tiny Llama: with `custom_generate` each is obeyed to the token, or refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, StoppingCriteria
from transformers.generation import (
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from pardec.interop.transformers import generate
from pardec.models.errors import ModelError, SpecError
from pardec.models.hf_adapter import HFAdapter
from pardec.models.plan import Plan, Visible

SHAPE: dict[str, Any] = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128}
SHAPE |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6], [9, 4, 9, 4, 9, 4, 9, 4], [11, 3, 8, 20, 11, 3, 8, 20]])


def new(kind: str = "Llama", **more: Any) -> Any:
    """Random weights, sharp enough to make a model repeat itself."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, f"{kind}Config")(**{**SHAPE, **more})
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@cache
def llama() -> Any:
    return new()


def both(model: Any = None, ids: Tensor = IDS, **arguments: Any) -> tuple[Tensor, Tensor]:
    """What transformers gives, and what pardec gives in its place. An argument that is a function makes the value."""

    def call(**how: Any) -> Tensor:
        fresh = {name: value() if callable(value) else value for name, value in arguments.items()}
        usual = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        made: Tensor = (model or llama()).generate(ids, **{**usual, **fresh, **how})
        return made

    return call(), call(custom_generate=generate, sampler="lookup")


def same(model: Any = None, **arguments: Any) -> Tensor:
    expected, made = both(model, **arguments)
    assert torch.equal(made, expected)
    return made


# --- positions ---


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_positions_are_obeyed_where_they_count_and_refused_elsewhere(kind: str) -> None:
    """transformers hands the mask over as None where it hides nothing; positions beside it count all the same."""
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


# --- hooks ---


def rolled(module: Any, given: Any, out: Any) -> Any:
    out.logits = out.logits.roll(1, -1)
    return out


@pytest.mark.parametrize("before", [False, True], ids=["after the first call", "before the first call"])
@pytest.mark.parametrize("kind", ["forward", "pre"])
def test_hooks_on_the_model_itself_are_refused_whenever_they_come(kind: str, before: bool) -> None:
    model = new()
    if not before:
        same(model)
    handle = (
        model.register_forward_hook(rolled)
        if kind == "forward"
        else model.register_forward_pre_hook(lambda module, given: None)
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
        (model.lm_head, lambda module, given, out: out.roll(1, -1)),
        (model.model.layers[0], lambda module, given, out: out * 1.5),
        (model.model.embed_tokens, lambda module, given, out: out + 0.3),
        (model.model, lambda module, given, out: calls.append(1)),
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
        lambda module, given, out: out * torch.linspace(0.2, 3, out.shape[1])[:, None]
    )
    with pytest.raises(ModelError, match="logits differ from its own"):
        both(model)
    ramp.remove()
    same(model)


def test_a_forward_that_was_put_in_is_found_unless_it_changes_nothing() -> None:
    model = new()
    same(model)
    own = model.forward
    model.forward = lambda *given, **named: own(*given, **named)
    same(model)
    model.forward = lambda *given, **named: rolled(None, None, own(*given, **named))
    with pytest.raises(ModelError, match="logits differ from its own"):
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
    with pytest.raises(SpecError, match="a part of the model is in training mode"):
        both(model)
    model.eval()
    same(model)


# --- criteria ---


class Once(StoppingCriteria):
    """Stops all rows as soon as any row's last token is the one before, plus a number."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Any:
        any_row = bool((input_ids[:, -1] == input_ids[:, -2]).any())
        if self.form == "bool":
            return any_row
        return torch.tensor(any_row) if self.form == "scalar" else torch.full((len(input_ids),), any_row)


class Counting(StoppingCriteria):
    """Stops row r when it has been asked r + 3 times."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        self.asked += 1
        return torch.arange(len(input_ids)) + 3 <= self.asked


class Shorter(MaxLengthCriteria):
    """A known class with a rule of its own."""

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.max_length - 4)


CRITERIA: dict[str, Callable[[], Any]] = {
    "a bool for the batch": lambda: [Once("bool")],
    "a scalar for the batch": lambda: [Once("scalar")],
    "the batch in every row": lambda: [Once("rows")],
    "a memory": lambda: [Counting()],
    "a class that is changed": lambda: [Shorter(20)],
    "several": lambda: [Counting(), Once("rows")],
}


@pytest.mark.parametrize("ends", [None, [2, 7, 11, 19]], ids=["no end token", "end tokens"])
@pytest.mark.parametrize("what", CRITERIA)
def test_criteria_are_asked_as_transformers_asks_them(what: str, ends: Any) -> None:
    model = new()
    model.generation_config.eos_token_id = ends
    late = same(model, pad_token_id=0)
    early = same(model, pad_token_id=0, stopping_criteria=CRITERIA[what])
    assert early.shape[1] <= late.shape[1]
    if what in ("a memory", "a class that is changed"):
        assert early.shape[1] < late.shape[1] or ends
    same(model, pad_token_id=0, stopping_criteria=CRITERIA[what], ids=IDS[:1])


def test_what_a_criterion_is_given_is_what_transformers_gives_it() -> None:
    told: list[list[Any]] = []

    class Telling(StoppingCriteria):
        def __init__(self) -> None:
            self.told: list[Any] = []
            told.append(self.told)

        def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
            self.told.append((input_ids.tolist(), scores))
            return torch.zeros(len(input_ids), dtype=torch.bool)

    model = new()
    model.generation_config.eos_token_id = [2, 7, 11, 19]
    same(model, pad_token_id=0, stopping_criteria=lambda: [Telling()])
    assert told[0] == told[1]


# --- processors ---


class Memory:
    """Forbids more of the vocabulary at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        return scores


class Listed(Memory):
    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.lengths.append(input_ids.shape[1])
        return scores


class Lazy:
    """Keeps what it made at its first call, which is no memory of calls."""

    mask: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.arange(scores.shape[1]) % 3 == 0
        return scores.masked_fill(self.mask, -torch.inf)


def closed() -> Callable[[Tensor, Tensor], Tensor]:
    numbers = iter(range(100))

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + next(numbers) * (torch.arange(scores.shape[1]) == 5)

    return process


class Penalty(RepetitionPenaltyLogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return super().__call__(input_ids, scores) + 1


class Constraint(PrefixConstrainedLogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return super().__call__(input_ids, scores).roll(1, -1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Memory, r"Memory remembers its calls \(in calls\)"),
        (Listed, r"Listed remembers its calls \(in lengths\)"),
        (closed, "function gives something else when it is asked again"),
        (lambda: lambda ids, scores: scores + torch.rand_like(scores), "when it is asked again"),
        (lambda: lambda ids, scores: scores - scores.mean(), "in a batch than alone"),
        (lambda: lambda ids, scores: scores * (ids[:1, -1:] % 3), "in a batch than alone"),
        (lambda: lambda ids, scores: scores.mean(1), r"gives \[\d\] for scores"),
        (lambda: lambda ids, scores: None, "gives NoneType for scores"),
        (lambda: Penalty(1.5), "Penalty changes one that knows rows"),
        (lambda: Constraint(lambda row, ids: [3, 4], 1), "Constraint changes one that knows rows"),
    ],
)
def test_a_processor_that_is_no_function_of_a_rows_text_is_refused(made: Any, says: str, rows: int) -> None:
    ids = IDS[:rows]  # of one row too: the nodes of a draft are rows to a processor
    how = {"max_new_tokens": 4, "do_sample": False, "custom_generate": generate, "sampler": "lookup"}
    with pytest.raises(SpecError, match=says) as error:
        llama().generate(ids, attention_mask=torch.ones_like(ids), logits_processor=[made()], **how)
    assert error.value.hint


def test_processors_of_the_callers_that_are_such_functions_run() -> None:
    plain = same()
    for made in (Lazy, lambda: lambda ids, scores: scores.roll(1, -1) + (ids[:, -1:] % 5)):
        assert not torch.equal(same(logits_processor=lambda made=made: [made()]), plain)
    same(prefix_allowed_tokens_fn=lambda: lambda row, ids: [3 + row, 9, 12 + len(ids) % 3])


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
    "kept scores": ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is not kept"),
    "kept states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    arguments, says = REFUSED[what]
    given = {"attention_mask": torch.ones_like(IDS), **arguments}
    given = {name: value() if callable(value) else value for name, value in given.items()}
    with pytest.raises(SpecError, match=says) as error:
        llama().generate(IDS, max_new_tokens=4, do_sample=False, custom_generate=generate, sampler="lookup", **given)
    assert error.value.hint


def test_an_encoder_is_refused() -> None:
    shape = {"vocab_size": 31, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**shape, decoder_start_token_id=0, pad_token_id=0)
    ).eval()
    with pytest.raises(SpecError, match="has an encoder"):
        model.generate(IDS, max_new_tokens=4, custom_generate=generate, sampler="lookup")
