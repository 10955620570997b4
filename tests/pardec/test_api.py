"""load, generate, stream and logits: every form of prompt, the arguments, and independent interleaved calls."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.samplers.rng import Keyed, row_seeds
from pardec.samplers.spec import Part
from tests.samplers.toys import toy

TEXTS = ["Tom has 3 cups.", "Sara buys 12 apples and finds 4 more apples.", "Ann"]
MASK, EOS = 4, 3


def ids(model: pardec.Model, text: str) -> list[int]:
    return list(model.tokenizer(text)["input_ids"])


def test_every_form_of_prompt_gives_the_same_tokens(model: pardec.Model) -> None:
    text = TEXTS[0]
    expected = model.generate(text, max_new_tokens=8).tokens
    message = {"role": "user", "content": text}
    assert model.generate([text], max_new_tokens=8).tokens == expected
    assert model.generate([message], max_new_tokens=8).tokens == expected
    assert model.generate([[message]], max_new_tokens=8).tokens == expected
    for given in (torch.tensor([ids(model, text)]), [torch.tensor(ids(model, text))], [ids(model, text)]):
        assert model.generate(input_ids=given, max_new_tokens=8).tokens == expected


def test_the_canvas_is_prompt_and_generation_right_padded(model: pardec.Model) -> None:
    result = model.generate(TEXTS, max_new_tokens=6, stop_ids=[])
    assert result.sequences.dtype == torch.int64
    assert result.sequences.shape[0] == 3
    for row, text in enumerate(TEXTS):
        prompt = ids(model, text)
        end = len(prompt) + 6
        assert result.sequences[row, :end].tolist() == prompt + result.tokens[row]
        assert (result.sequences[row, end:] == model.language_model.decoding_config.pad_id).all()
        assert result.text[row] == model.tokenizer.decode(result.tokens[row], skip_special_tokens=True)


@pytest.mark.parametrize("sampler", ["threshold:tau=0.3", "threshold:tau=0.3@dual", "fixed:steps=4@prefix"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_alone_is_the_row_in_a_batch(model: pardec.Model, sampler: str, temperature: float) -> None:
    seeds = [11, 12, 13]
    arguments: dict[str, Any] = {"sampler": sampler, "temperature": temperature, "max_new_tokens": 12}
    together = model.generate(TEXTS, seed=seeds, **arguments)
    for row, text in enumerate(TEXTS):
        alone = model.generate(text, seed=[seeds[row]], **arguments)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.nfe[0] == together.nfe[row]


def test_one_seed_derives_a_seed_for_each_row_and_touches_no_global_one(model: pardec.Model) -> None:
    before = torch.random.get_rng_state()
    first = model.generate(TEXTS, seed=5, temperature=1.0, max_new_tokens=8)
    again = model.generate(TEXTS, seed=list(row_seeds(5, 3)), temperature=1.0, max_new_tokens=8)
    other = model.generate(TEXTS, seed=6, temperature=1.0, max_new_tokens=8)
    assert first.tokens == again.tokens != other.tokens
    assert first.seeds == list(row_seeds(5, 3))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_source_takes_the_place_of_the_seed(model: pardec.Model) -> None:
    seeds = row_seeds(9, 1)
    with_source = model.generate(TEXTS[0], source=Keyed(seeds), seed=1, temperature=1.0, max_new_tokens=8)
    assert with_source.tokens == model.generate(TEXTS[0], seed=9, temperature=1.0, max_new_tokens=8).tokens


def test_stream_tells_what_generate_returns(model: pardec.Model) -> None:
    events = list(model.stream(TEXTS, max_new_tokens=8, sampler="threshold:tau=0.3"))
    result = model.generate(TEXTS, max_new_tokens=8, sampler="threshold:tau=0.3")
    assert isinstance(events[0], pardec.Started)
    assert isinstance(events[-1], pardec.Finished)
    assert np.array_equal(events[-1].tokens, result.sequences.numpy())
    assert sorted(e.row for e in events if isinstance(e, pardec.RowFinished)) == [0, 1, 2]
    committed = sum(int(e.committed.sum()) for e in events if isinstance(e, pardec.Step))
    assert committed == sum(len(step.positions) for row in result.trace.steps for step in row)


def test_leaving_a_stream_early_frees_it_and_interleaved_streams_stay_apart(model: pardec.Model) -> None:
    left = model.stream(TEXTS[0], max_new_tokens=16)
    for event in left:
        if isinstance(event, pardec.Step):
            break
    left.close()  # type: ignore[attr-defined]
    one, two = (model.stream(text, max_new_tokens=8, sampler="sequential") for text in TEXTS[:2])
    ends = {}
    for a, b in zip(one, two, strict=True):
        ends = {"one": a, "two": b}
    for text, end in zip(TEXTS[:2], ends.values(), strict=True):
        alone = model.generate(text, max_new_tokens=8, sampler="sequential")
        assert isinstance(end, pardec.Finished)
        assert np.array_equal(end.tokens, alone.sequences.numpy())


def test_the_callback_sees_every_event(model: pardec.Model) -> None:
    seen: list[pardec.Event] = []
    model.generate(TEXTS[0], max_new_tokens=4, callback=seen.append)
    told = list(model.stream(TEXTS[0], max_new_tokens=4))
    assert [type(event) for event in seen] == [type(event) for event in told]


def test_a_template_keeps_what_is_given_and_fills_the_rest(model: pardec.Model) -> None:
    ten = ids(model, "Tom has 3 cups and 10 apples.")
    holes = [None if at in (2, 5, 6) else token for at, token in enumerate(ten)]
    result = model.generate(template=holes, sampler="sequential")
    filled = result.tokens[0]
    assert len(filled) == len(ten)
    assert MASK not in filled
    assert [token for at, token in enumerate(filled) if holes[at] is not None] == [t for t in holes if t is not None]
    assert result.nfe == [3]
    masked = torch.tensor([MASK if token is None else token for token in holes])
    assert model.generate(template=masked, sampler="sequential").tokens == result.tokens


def test_a_template_follows_the_prompt_and_may_be_text(model: pardec.Model) -> None:
    result = model.generate(TEXTS[:2], template="answer <mask> <mask>; answer <mask>")
    given = model.tokenizer("answer <mask> <mask>; answer <mask>", add_special_tokens=False)["input_ids"]
    for row, text in enumerate(TEXTS[:2]):
        start = len(ids(model, text))
        kept = [(a, b) for a, b in zip(given, result.sequences[row, start:].tolist(), strict=False) if a != MASK]
        assert all(a == b for a, b in kept)
    two = model.generate(TEXTS[:2], template=["answer <mask>", "<mask> <mask> answer"])
    assert [len(tokens) for tokens in two.tokens] == [2, 3]


def test_tokens_are_cut_after_the_first_end_token(model: pardec.Model) -> None:
    whole = model.generate(TEXTS[0], max_new_tokens=12, stop_ids=[])
    stop = whole.tokens[0][4]
    cut = model.generate(TEXTS[0], max_new_tokens=12, stop_ids=[stop], sampler="threshold")
    first = whole.tokens[0].index(stop)
    assert cut.tokens[0] == whole.tokens[0][: first + 1]
    assert cut.generated == [first]
    assert model.generate(TEXTS[0], max_new_tokens=12, stop_ids=stop, sampler="threshold").tokens == cut.tokens


def test_only_what_was_generated_ends_a_row_and_counts(model: pardec.Model) -> None:
    call = model.prepare("Ann", template=[7, EOS, None, None, None, 9], stop_ids=[EOS])
    start = call.request.prompts[0]
    ann = call.request.canvases[0][:start].tolist()
    assert call.generated(0, [*ann, 7, EOS, 8, EOS, 0, 9, 0, 0]) == ([7, EOS, 8, EOS], 1)
    assert call.generated(0, [*ann, 7, EOS, 8, 8, 8, 9]) == ([7, EOS, 8, 8, 8, 9], 3)


def test_guidance_counts_once_in_nfe_and_twice_in_forward_rows(model: pardec.Model) -> None:
    guided = model.generate(TEXTS[:2], max_new_tokens=6, cfg=1.5)
    assert guided.forward_rows == [2 * n for n in guided.nfe]


def test_logits_are_the_checkpoints_rows(model: pardec.Model) -> None:
    given = torch.tensor([ids(model, TEXTS[0]), ids(model, TEXTS[0])[::-1]])
    logits = model.logits(given)
    assert logits.dtype == torch.float32
    assert logits.shape == (2, given.shape[1], 361)
    assert torch.allclose(model.logits(given[1:])[0], logits[1], atol=1e-5)


def test_a_preset_brings_its_arguments_and_the_callers_win(model: pardec.Model) -> None:
    bare = model.generate(TEXTS[0], sampler="preset:fast-dllm", max_new_tokens=40)
    assert bare.settings["max_new_tokens"] == 40
    assert bare.settings["block_length"] == 32
    assert bare.spec == model.generate(TEXTS[0], sampler="threshold:tau=0.9@dual", max_new_tokens=40).spec


@pytest.mark.parametrize(("asked", "new", "used"), [(None, 64, 32), (None, 8, 8), (4, 8, 4), (8, 8, 8)])
def test_the_block_is_min_of_32_and_the_new_tokens(model: pardec.Model, asked: int | None, new: int, used: int) -> None:
    call = model.prepare(TEXTS[0], max_new_tokens=new, block_length=asked)
    assert call.request.block_length == used
    assert not call.request.absolute
    assert model.prepare(TEXTS[0], block_align="absolute").request.absolute


def test_help_shows_every_argument_with_its_default() -> None:
    shown = inspect.signature(pardec.Model.generate).parameters
    assert list(shown)[:2] == ["self", "prompt"]
    assert shown["max_new_tokens"].default == 64
    assert shown["temperature"].default == 0.0
    from pardec.requests.settings import Arguments, Settings

    assert set(Arguments.__annotations__) == set(Settings.__dataclass_fields__)
    assert set(shown) - {"self", "prompt"} == set(Arguments.__annotations__)


def test_running_out_of_memory_is_said_in_one_line(model: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        yield

    monkeypatch.setattr("pardec.samplers.masked.loop.decode", exhausted)
    with pytest.raises(pardec.PardecError, match=r"out of memory: 2 rows of up to \d+ tokens") as caught:
        model.generate(TEXTS[:2], max_new_tokens=8)
    assert "--batch-size" in caught.value.hint


def test_cards_name_everything() -> None:
    samplers = {card.name: card for card in pardec.list_samplers()}
    assert {"threshold", "sequential", "fixed", "none", "prefix", "dual", "eos"} <= set(samplers)
    assert samplers["threshold"].stage == "select"
    assert next(p["name"] for p in samplers["threshold"].parameters) == "tau"
    for card in pardec.list_models():
        assert card.parameters > 0
        assert card.summary


def test_a_block_causal_model_takes_its_exact_cache_unless_another_is_named(model: pardec.Model) -> None:
    sdar = pardec.Model(toy("sdar", sharp=1.2))
    arguments: dict[str, Any] = {"input_ids": [[1, 2, 3], [4, 5, 6, 7, 8]], "max_new_tokens": 9}
    for given in (None, "threshold:tau=0.4", "fixed:steps=4+eos"):
        taken = sdar.generate(sampler=given, **arguments)
        assert taken.spec.endswith("@block")
        named = sdar.generate(sampler=f"{given or 'threshold+eos'}@none", **arguments)
        assert "@none" in named.spec
        assert named.tokens == taken.tokens
        assert sum(named.tokens_fed) > sum(taken.tokens_fed)
    assert model.prepare(TEXTS[0]).sampler.spec.cache == Part("none")
    with pytest.raises(pardec.SpecError, match="'block' is for block-causal models and random-dream is bidirectional"):
        model.prepare(TEXTS[0], sampler="threshold@block")


@pytest.mark.parametrize(("dtype", "promise"), [("float32", "greedy"), ("bfloat16", "greedy up to bfloat16 rounding")])
def test_exact_names_the_precision_that_it_holds_up_to(dtype: str, promise: str) -> None:
    model = pardec.load("tiny-llama", device="cpu", dtype=dtype)
    given: dict[str, Any] = {"max_new_tokens": 4, "stop_ids": []}
    assert model.generate("Tom has 3 cups.", sampler="lookup", **given).exact == promise
    assert model.generate("Tom has 3 cups.", sampler="sequential", **given).exact == "greedy"
    assert model.generate("Tom has 3 cups.", sampler="lookup+typical", temperature=1.0, **given).exact == "relaxed"
