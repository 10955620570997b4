"""A second checkpoint that drafts: distributions as of whole forwards, its cache, errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import transformers

from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative.draft_model import DraftModelState
from tests.samplers import toys
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.draft_model_checks import fed_slots_suffice
from tests.samplers.fake_draft_model import (
    NEW,
    RAGGED,
    Pausing,
    distribution,
    distribution_errors,
    greedy,
    named,
    near,
    target,
)

LOADED = draft_models.language_model  # the tests put toys in its place
SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with named(near=near(), same=target(), wide=toy_ar(4, 7, 2.0), far=toy_ar(9, 5, 4.0)):
        yield


@pytest.mark.parametrize("drafter", ["far", "same"])
def test_greedy_decoding_is_kept_whatever_the_drafter(drafter: str) -> None:
    assert rows(run(target(), f"model:name={drafter},k=3", RAGGED, NEW)) == greedy()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_target_as_its_own_drafter_is_always_accepted(k: int, temperature: float) -> None:
    new = 1 + 4 * (k + 1)
    done = run(target(), f"model:name=same,k={k}", RAGGED, new, temperature=temperature)
    assert done.trace.accepted == ((0, k, k, k, k),) * len(RAGGED)
    assert done.draft_forwards == (4 * k,) * len(RAGGED)


def test_what_history_does_to_the_target_it_does_to_the_drafter() -> None:
    processors = (transformers.RepetitionPenaltyLogitsProcessor(1.7), transformers.NoRepeatNGramLogitsProcessor(2))
    done = run(target(), "model:name=same,k=3", RAGGED, 13, temperature=0.8, top_p=0.9, processors=processors)
    assert done.trace.accepted == ((0, 3, 3, 3),) * len(RAGGED)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drafter", ["near", "same"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.covers(2)
def test_every_distribution_is_that_of_a_whole_forward(shape: str, drafter: str, temperature: float) -> None:
    """Holds only if missing K/V are filled, accepted paths are moved, and tree nodes attend to their paths only."""
    model = near() if drafter == "near" else target()
    with distribution_errors(lambda text: distribution(model, text)) as errors:
        done = run(target(), f"model:name={drafter},k=4+{shape}", RAGGED, NEW, temperature=temperature)
    assert max(errors) < 5e-5
    assert max(map(max, done.trace.accepted)) >= 3  # full acceptance leaves a gap
    assert len({sum(row) for row in done.trace.accepted}) > 1


def test_rows_that_draft_nothing_for_a_while_catch_up() -> None:
    made = replace(registry.resolve("model:name=near,k=4", "ar"), length=Pausing())
    with distribution_errors(lambda text: distribution(near(), text)) as errors:
        assert rows(run(target(), made, RAGGED, NEW)) == greedy()
    assert max(errors) < 5e-5


def test_an_end_token_inside_a_draft_ends_its_row_only() -> None:
    stop = 3
    done = run(target(), "model:name=same,k=5", RAGGED, NEW, stop_ids=(stop,))
    for text, whole, prompt in zip(rows(done), greedy(), RAGGED, strict=True):
        made = whole[len(prompt) :]
        assert text[len(prompt) :] == (made[: made.index(stop) + 1] if stop in made else made)
    assert len(set(map(len, rows(done)))) > 1


def test_slots_after_what_a_row_holds_are_never_read() -> None:
    fed_slots_suffice(DraftModelState, [f"model:name=near,k=4+{shape}" for shape in SHAPES])


# --- what goes together ---


def test_a_drafter_without_a_name_is_refused_when_the_spec_is_read() -> None:
    with pytest.raises(SpecError, match="model: name is missing") as error:
        registry.resolve("model:k=3", "ar")
    assert "model:name=" in str(error.value.hint)


def ran(model: LanguageModel) -> list[int]:
    """Runs a drafter with other tokens; returns how many forwards ran before it was refused."""
    calls: list[int] = []
    run_ = LanguageModel.run

    def counted(self: LanguageModel, *given):  # type: ignore[no-untyped-def]
        calls.append(1)
        return run_(self, *given)

    with (
        named(bad=model),
        patch.object(LanguageModel, "run", counted),
        pytest.raises(ModelError, match="share their tokens|no autoregressive"),
    ):
        run(target(), "model:name=bad", [[1, 2]], 5)
    return calls


def test_other_tokens_are_refused_before_the_first_forward() -> None:
    assert ran(toy_ar(1, 7)) == []
    assert ran(toys.toy("llada")) == []
    vocab = {str(i): i for i in range(5)}
    other = SimpleNamespace(get_vocab=lambda: {**vocab, "4": 3})
    with patch.object(target(), "tokenizer", SimpleNamespace(get_vocab=lambda: vocab)):
        assert ran(replace(toy_ar(1, 5), tokenizer=other)) == []


@pytest.mark.parametrize("size", [4, 7])
def test_tables_of_one_tokenizer_may_be_padded_to_different_lengths(size: int) -> None:
    tokenizer = SimpleNamespace(get_vocab=lambda: {str(i): i for i in range(4)})
    drafter = replace(toy_ar(4, size, 2.0), tokenizer=tokenizer)
    with named(other=drafter), patch.object(target(), "tokenizer", tokenizer):
        assert rows(run(target(), "model:name=other,k=3", RAGGED, NEW)) == greedy()
        done = run(target(), "model:name=other,k=3+dyspec:nodes=4", RAGGED, NEW, temperature=1.0)
    assert sum(map(sum, done.trace.accepted)) > 0


# --- checkpoints ---


def test_a_checkpoint_is_loaded_once() -> None:
    LOADED.cache_clear()
    with (
        patch.object(draft_models, "load", wraps=draft_models.load) as loading,
        patch.object(draft_models, "language_model", LOADED),
    ):
        model = load("tiny-llama", dtype="float32")
        for _ in range(3):
            run(model, "model:name=tiny-llama-draft,k=2", [[5, 6, 7]], 6)
    assert loading.call_count == 1
    assert loading.call_args.kwargs == {"device": model.device, "dtype": "auto"}  # float32 on a CPU


def test_the_embedded_draft_model_speaks_for_three_tokens_a_forward() -> None:
    import pardec

    model = pardec.load("tiny-llama", dtype="float32")
    prompts = [problem.prompt for problem in pardec.task("arithmetic").problems(split="heldout", n=8, seed=7)]
    with patch.object(draft_models, "language_model", LOADED):
        result = model.generate(prompts, sampler="model:name=tiny-llama-draft,k=5", max_new_tokens=64)
        plain = model.generate(prompts, sampler="sequential", max_new_tokens=64)
    assert result.tokens == plain.tokens
    rounds = [taken for row in result.trace.accepted for taken in row[1:]]
    assert sum(rounds) / len(rounds) + 1 >= 3


def test_a_longer_text_is_what_plain_decoding_gives() -> None:
    prompt = RAGGED[3]
    done = run(target(), "model:name=near,k=5+beam:beams=4,nodes=12", [prompt], 60)
    assert rows(done) == [plain_greedy(target(), prompt, 60)]
