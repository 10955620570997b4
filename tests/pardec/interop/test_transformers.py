"""pardec in transformers' generate, compared token by token with transformers; its generators as pardec drafters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import CandidateGenerator, StopStringCriteria
from transformers.generation.candidate_generator import AssistedCandidateGenerator, PromptLookupCandidateGenerator

import pardec
from pardec.interop.transformers import Output, candidates, generate
from pardec.models.errors import ModelError, SpecError
from tests.grids import thinned
from tests.models.toys import library_model
from tests.samplers.ar_toys import counted, g_test, joint, plain_greedy, rows, run, toy_ar

COMMON = {
    "vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {"vocab_size": 31, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": 2}
SAMPLERS = [None, "lookup", "recycling", "jacobi"]


@cache
def network(kind: str = "Llama", seed: int = 0) -> Any:
    """Random weights, sharp enough to make a model repeat itself."""
    config = getattr(transformers, f"{kind}Config")(**(GPT2 if kind == "GPT2" else COMMON))
    return library_model(config, spread=0.2, seed=seed)


def inputs(batch: int, width: int = 9) -> dict[str, Tensor]:
    """Prompts of unequal length, padded on the left."""
    ids = torch.randint(3, 31, (batch, width), generator=torch.Generator().manual_seed(batch))
    mask = torch.ones_like(ids)
    for row in range(batch):
        padding = [0, 3, width - 1, 5][row % 4]
        ids[row, :padding], mask[row, :padding] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def both(sampler: Any, batch: int = 4, model: Any = None, **arguments: Any) -> tuple[Tensor, Tensor]:
    """The output of transformers, and of pardec in its place."""
    model = model or network()
    given = {"max_new_tokens": 25, "do_sample": False, **inputs(batch), **arguments}
    return model.generate(**given), model.generate(**given, custom_generate=generate, sampler=sampler)


# --- greedy: the same tensor ---


KINDS = ["Llama", "Qwen2", "GPT2", "Gemma"]


def paired(kind: str, batch: int, sampler: str | None) -> bool:
    """Keeps half of the combinations: every kind with every sampler, and each alone and in a batch."""
    return (KINDS.index(kind) + SAMPLERS.index(sampler) + (batch == 4)) % 2 == 0


@pytest.mark.parametrize(("kind", "batch", "sampler"), thinned(product(KINDS, [1, 4], SAMPLERS), paired))
@pytest.mark.covers(1)
def test_greedy_decoding_gives_transformers_own_tensor(kind: str, batch: int, sampler: str | None) -> None:
    expected, made = both(sampler, batch, network(kind))
    assert torch.equal(made, expected)
    assert made.dtype == torch.int64


SHAPED: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "min_new_tokens": {"min_new_tokens": 20, "suppress_tokens": [4]},
    "min_length": {"min_length": 30, "eos_token_id": [2, 7, 11]},
    "bad_words_ids": {"bad_words_ids": [[5], [7, 8], [9, 9]]},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "sequence_bias": {"sequence_bias": [[[6], 9.0], [[6, 8], -20.0]]},
    "forced_eos_token_id": {"forced_eos_token_id": 2},
    "begin_suppress_tokens": {"begin_suppress_tokens": [3, 4, 5, 6]},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (5, 1.2)},
    "several ends": {"eos_token_id": [2, 7, 11, 19], "pad_token_id": 29},
    "max_length": {"max_length": 17, "max_new_tokens": None},
    "a constraint that knows the row": {"prefix_allowed_tokens_fn": lambda row, ids: [3 + row, 9, 12 + len(ids) % 3]},
}


@cache
def unshaped(batch: int) -> Tensor:
    return network().generate(**inputs(batch), max_new_tokens=25, do_sample=False)


def halved(what: str, batch: int, sampler: str) -> bool:
    """Keeps half of the combinations, so that each pair of argument, batch size and sampler occurs."""
    return (list(SHAPED).index(what) + (batch == 4) + (sampler == "lookup")) % 2 == 0


@pytest.mark.parametrize(
    ("what", "batch", "sampler"), thinned(product(SHAPED, [1, 4], ["lookup", "recycling"]), halved)
)
@pytest.mark.covers(1)
def test_every_logits_processor_counts_and_sees_what_it_does_in_transformers(
    what: str, batch: int, sampler: str
) -> None:
    plain = unshaped(batch)
    expected, made = both(sampler, batch, **SHAPED[what])
    assert torch.equal(made, expected)
    assert batch == 1 or what == "several ends" or expected.shape != plain.shape or not torch.equal(expected, plain)


def test_a_repetition_penalty_ignores_each_row_s_own_padding() -> None:
    plain, _ = both(None)
    for token in plain[:, 9:].unique().tolist()[:3]:  # a token that the model often generates is used as padding
        given = inputs(4)
        given["input_ids"] = given["input_ids"].masked_fill(given["attention_mask"] == 0, token)
        expected, made = both("lookup", repetition_penalty=3.0, **given)
        assert torch.equal(made, expected)


def test_some_rows_end_before_others_and_are_filled_up() -> None:
    expected, made = both("recycling", eos_token_id=[7, 11, 19], pad_token_id=29)
    assert torch.equal(made, expected)
    ends = [(row[9:] != 29).sum().item() for row in made]
    assert len(set(ends)) > 1


def test_without_a_mask_and_with_a_mask_that_hides_nothing() -> None:
    ids = inputs(1)["input_ids"]
    expected = network().generate(ids, max_new_tokens=9, do_sample=False)
    made = network().generate(ids, max_new_tokens=9, do_sample=False, custom_generate=generate, sampler="lookup")
    assert torch.equal(made, expected)


class Sum(StoppingCriteria):
    """Stops a row whose last two tokens sum to a multiple of four."""

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        return (input_ids[:, -1] + input_ids[:, -2]) % 4 == 0


@pytest.mark.parametrize("ends", [None, 2])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("sampler", ["sequential", "recycling"])
@pytest.mark.covers(2)
def test_a_stopping_criterion_is_asked_behind_every_token(sampler: str, batch: int, ends: int | None) -> None:
    model = network()
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = ends
    try:
        expected, made = both(sampler, batch, stopping_criteria=[Sum()], pad_token_id=0)
        late, _ = both(sampler, batch, pad_token_id=0)
    finally:
        model.generation_config.eos_token_id = before
    assert torch.equal(made, expected)
    assert made.shape[1] < late.shape[1]


def tiny() -> tuple[Any, Any]:
    folder = pardec.load("tiny-llama", device="cpu").path
    assert folder is not None
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, pardec.load("tiny-llama", device="cpu").tokenizer


def test_a_real_model_with_text_that_stops_it() -> None:
    model, tokenizer = tiny()
    tokenizer.padding_side = "left"
    problems = pardec.task("records").problems(split="heldout", n=4, seed=7)
    given = tokenizer([problem.prompt for problem in problems], return_tensors="pt", padding=True)
    options = {"max_new_tokens": 48, "do_sample": False, "pad_token_id": tokenizer.pad_token_id or 0}
    for criteria in ([], [StopStringCriteria(tokenizer, ['", "job'])]):
        expected = model.generate(**given, **options, stopping_criteria=StoppingCriteriaList(criteria))
        for sampler in ("copyspec", "recycling"):
            made = model.generate(
                **given,
                **options,
                stopping_criteria=StoppingCriteriaList(criteria),
                custom_generate=generate,
                sampler=sampler,
            )
            assert torch.equal(made, expected)


def test_when_the_time_is_up_every_row_stops_where_it_stands() -> None:
    made = network().generate(
        **inputs(4), max_new_tokens=60, max_time=0.0, do_sample=False, custom_generate=generate, sampler="lookup"
    )
    expected, _ = both(None)
    assert made.shape[1] == 10  # one token a row, from the prompt's forward
    assert torch.equal(made, expected[:, :10])


class Recorder:
    """Records everything that a streamer receives."""

    def __init__(self) -> None:
        self.given: list[list[Any]] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        self.given.append(value.tolist())

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("bound", [False, True])
def test_a_streamer_gets_what_transformers_gives_it(bound: bool, batch: int) -> None:
    theirs, ours = Recorder(), Recorder()
    options = {**inputs(batch), "max_new_tokens": 20, "do_sample": False, "eos_token_id": [2, 7, 11]}
    network().generate(**options, streamer=theirs)
    if bound:
        network().generate(**options, custom_generate=partial(generate, streamer=ours), sampler="recycling")
    else:
        network().generate(**options, custom_generate=generate, sampler="recycling", streamer=ours)
    assert ours.given == theirs.given
    assert ours.ended == theirs.ended == 1


def test_the_output_object_says_what_the_decoding_took() -> None:
    options = {**inputs(4), "max_new_tokens": 25, "do_sample": False, "return_dict_in_generate": True}
    expected = network().generate(**options)
    made = network().generate(**options, custom_generate=generate, sampler="recycling")
    assert isinstance(made, Output)
    assert isinstance(made, type(expected))
    assert torch.equal(made.sequences, expected.sequences)
    assert made.scores is None
    assert len(made.nfe) == 4
    assert max(made.nfe) < made.sequences.shape[1] - 9
    assert made.spec.startswith("recycling:k=8,")


# --- sampling: the same distribution ---


def render(sampler: str, count: int, **options: Any) -> Tensor:
    made: Tensor = small().generate(
        torch.tensor([[1, 2, 0, 1, 2]]),
        attention_mask=torch.ones(1, 5, dtype=torch.int64),
        do_sample=True,
        max_new_tokens=3,
        num_return_sequences=count,
        custom_generate=generate,
        sampler=sampler,
        **options,
    )
    return made


@cache
def small() -> Any:
    """A model with four tokens, whose distribution can be enumerated."""
    config = transformers.LlamaConfig(**{**COMMON, "vocab_size": 4, "eos_token_id": None})
    return library_model(config, spread=0.15, seed=1)


@torch.no_grad()
def truth(prompt: list[int], options: dict[str, Any]) -> np.ndarray:
    """The probability of every continuation of three tokens, from transformers' own logits and warpers."""
    model, config = small(), GenerationConfig(do_sample=True, **options)
    warpers = model._get_logits_processor(config, input_ids_seq_length=len(prompt), device="cpu")
    distribution = np.ones((4, 4, 4))
    for end in product(range(4), repeat=3):
        for count in range(3):
            ids = torch.tensor([[*prompt, *end[:count]]])
            p = warpers(ids, model(ids).logits[:, -1].float()).softmax(-1)
            distribution[end] *= float(p[0, end[count]])
    return distribution


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("lookup:k=3", {}),
        ("lookup+match", {"min_p": 0.2}),
        ("lookup:k=3", {"top_p": 0.8, "repetition_penalty": 1.5}),
        ("recycling:k=3,tree=3-4", {"temperature": 0.7, "top_k": 3}),
    ],
)
def test_samples_come_from_transformers_law(options: dict[str, Any], sampler: str) -> None:
    made = render(sampler, 1500, seed=3, **{"top_k": 0, **options})
    counts = np.zeros((4, 4, 4))
    np.add.at(counts, tuple(made[:, 5:].T.numpy()), 1)
    assert g_test(counts, truth([1, 2, 0, 1, 2], {"top_k": 0, **options})) < 3.5


def test_torch_s_seed_decides_and_a_seed_of_one_s_own_goes_before() -> None:
    transformers.set_seed(5)
    first, second = render("lookup", 20), render("lookup", 20)
    transformers.set_seed(5)
    again = render("lookup", 20)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(render("lookup", 20, seed=1), render("lookup", 20, seed=1))
    state = torch.random.get_rng_state()
    both("lookup")
    assert torch.equal(torch.random.get_rng_state(), state)  # greedy decoding draws nothing
    assert len({tuple(row) for row in first.tolist()}) > 5


# --- what the model keeps, and what is refused ---


def test_the_model_is_as_it_was_afterwards() -> None:
    model = network("Qwen2", 3)
    ids = inputs(1)["input_ids"]
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            before = model(ids).logits
        both("lookup", model=model)
        assert model.config._attn_implementation == implementation
        with pytest.raises(SpecError):
            model.generate(ids, max_new_tokens=3, custom_generate=generate, sampler="lookup:k=0")
        assert model.config._attn_implementation == implementation
        with torch.no_grad():
            assert torch.equal(model(ids).logits, before)
        assert set(model.state_dict()) == set(dict(network("Qwen2").state_dict()))


def test_a_model_is_tried_once_and_anew_when_it_has_changed() -> None:
    model = network("Llama", 7)
    both("lookup", model=model)
    view = vars(model)["_pardec_view"][1]
    both("lookup", model=model)
    assert vars(model)["_pardec_view"][1] is view
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    expected, made = both("lookup", model=model)  # new weights in the same place
    assert torch.equal(made, expected)
    assert vars(model)["_pardec_view"][1] is view
    model.resize_token_embeddings(37)
    expected, made = both("lookup", model=model)
    assert torch.equal(made, expected)
    assert vars(model)["_pardec_view"][1].vocab_size == 37


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_lookup_num_tokens": 3}, "the call asks for assisted generation"),
        ({"assistant_model": "network"}, "assistant_model cannot be combined with a sampler"),
        ({"encoder_repetition_penalty": 1.5}, "EncoderRepetitionPenaltyLogitsProcessor cannot be run"),
        ({"sampler": "lookup:k=0"}, "lookup: k must be at least 1"),
        ({"sampler": "threshold"}, "'threshold' is for masked models"),
        ({"sampler": "greedy", "do_sample": True}, "'greedy' accepts the likeliest tokens"),
        ({"sampler": "lookupp"}, "unknown sampler 'lookupp' (did you mean 'lookup'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {**inputs(2), "max_new_tokens": 5, "do_sample": False, "sampler": "lookup", **options}
    if options.get("assistant_model"):
        given["assistant_model"] = network("Llama", 1)
        given.update({name: value[:1] for name, value in inputs(1).items()})
    with pytest.raises(SpecError) as error:
        network().generate(**given, custom_generate=generate)
    assert message in str(error.value)
    assert error.value.hint


def test_a_model_in_training_and_a_model_without_such_attention_are_refused() -> None:
    model = network("Llama", 2)
    model.train()
    with pytest.raises(SpecError, match=r"the model is in training mode"):
        model.generate(torch.tensor([[3, 4]]), max_new_tokens=2, custom_generate=generate, sampler="lookup")
    model.eval()
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=31, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ModelError, match="BloomForCausalLM"):
        bloom.eval().generate(torch.tensor([[3, 4]]), max_new_tokens=2, custom_generate=generate, sampler="lookup")


# --- candidate generators ---


def assisted(prompt: Tensor, *, sampled: bool = False) -> AssistedCandidateGenerator:
    """A drafting model of transformers for one row."""
    config = GenerationConfig(max_length=60, min_length=0, do_sample=sampled, eos_token_id=None, pad_token_id=0)
    # Near the target, so that it is right often and wrong often.
    return AssistedCandidateGenerator(prompt, near(), config, {"attention_mask": torch.ones_like(prompt)})


@cache
def near() -> Any:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON)).eval()
    model.load_state_dict(network().state_dict())
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    model.generation_config.num_assistant_tokens = 4
    return model


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("accept", ["speculative", "greedy", "match"])
@pytest.mark.covers(1)
def test_a_drafting_model_of_transformers_in_a_batch(accept: str, batch: int) -> None:
    sampler = candidates(assisted, accept=accept)
    options = {**inputs(batch), "max_new_tokens": 25, "do_sample": False, "return_dict_in_generate": True}
    expected = network().generate(**{**options, "return_dict_in_generate": False})
    made = network().generate(**options, custom_generate=generate, sampler=sampler)
    assert torch.equal(made.sequences, expected)
    assert max(made.nfe) < 20
    assert made.spec == f"candidates:k=20+{accept}" or made.spec.startswith(f"candidates:k=20+{accept}")


def test_a_drafting_model_is_told_how_its_candidates_fared() -> None:
    events: list[tuple[int, int, int]] = []
    plain = AssistedCandidateGenerator.update_candidate_strategy

    class Telling(AssistedCandidateGenerator):
        def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
            events.append((input_ids.shape[1], scores.shape[1], num_matches))
            plain(self, input_ids, scores, num_matches)

    made = assisted(torch.nn.functional.pad(inputs(1)["input_ids"], (0, 1)))
    made.__class__ = Telling
    done = network().generate(
        **inputs(1), max_new_tokens=25, do_sample=False, return_dict_in_generate=True, custom_generate=generate,
        sampler=candidates(made),
    )  # fmt: skip
    lengths = [length for length, _, _ in events]
    assert len(events) == done.nfe[0] - 1
    assert lengths == sorted(lengths)
    assert lengths[-1] == done.sequences.shape[1]
    assert np.diff([10, *lengths]).tolist() == [matches + 1 for _, _, matches in events]
    assert all(matches < given for _, given, matches in events)


def test_prompt_lookup_of_transformers_drafts_what_pardec_s_does() -> None:
    model, given = toy_ar(3, vocab=11, sharp=2.0), [[5, 6, 7, 5, 6, 7, 5]]

    def theirs(prompt: Tensor) -> CandidateGenerator:
        return PromptLookupCandidateGenerator(num_output_tokens=6, max_matching_ngram_size=2, max_length=1000)

    made = run(model, candidates(theirs), given * 3, 40)
    alone = run(model, candidates(theirs(torch.tensor(given))), given, 40)
    ours = run(model, "lookup:k=6,max_ngram=2,prefer=first", given * 3, 40)
    assert rows(made) == rows(ours) == [plain_greedy(model, given[0], 40)] * 3
    assert made.nfe == ours.nfe == alone.nfe * 3
    assert made.tokens_fed == ours.tokens_fed
    assert made.trace.accepted == ours.trace.accepted


class Fixed(CandidateGenerator):
    """Draws two tokens from one distribution, for any text; in every third call without their logits."""

    def __init__(self, seed: int, claim: Callable[[Tensor], Tensor] = lambda distribution: distribution) -> None:
        self.render = torch.Generator().manual_seed(seed)
        self.distribution, self.claim, self.calls = torch.tensor([0.5, 0.05, 0.3, 0.15]), claim, seed

    def get_candidates(self, input_ids: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
        self.calls += 1
        if self.calls % 3 == 0:
            return torch.cat((input_ids, torch.tensor([[2, 0]])), 1), None
        new = torch.multinomial(self.distribution, 2, replacement=True, generator=self.render)[None]
        return torch.cat((input_ids, new), 1), self.claim(self.distribution).log().expand(1, 2, 4)


def draws(claim: Callable[[Tensor], Tensor], count: int = 3000) -> float:
    model, prompt, counts = toy_ar(5, vocab=4), [1, 2, 0], np.zeros((4, 4, 4))
    numbers = iter(range(count))
    for start in range(0, count, 1000):
        sampler = candidates(lambda ids: Fixed(next(numbers), claim))
        done = run(model, sampler, [prompt] * 1000, 3, temperature=1.0, seeds=range(start, start + 1000))
        counts += counted(done, len(prompt), 3, 4)
    return g_test(counts, joint(model, prompt, 3))


def test_sampled_candidates_keep_the_law() -> None:
    assert draws(lambda distribution: distribution) < 3.5


def test_candidates_said_to_come_from_another_law_do_not() -> None:
    assert draws(lambda distribution: torch.full_like(distribution, 0.25)) > 6


def test_what_is_no_generator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="candidates: str has no get_candidates") as error:
        candidates("lookup")
    assert error.value.hint
    with pytest.raises(SpecError, match="the function gave a int, which has no get_candidates"):
        run(toy_ar(), candidates(lambda prompt: 3), [[1, 2]], 3)
    with pytest.raises(SpecError, match="one candidate generator cannot follow 2 rows"):
        run(toy_ar(), candidates(Fixed(0)), [[1, 2], [3]], 3)
    with pytest.raises(SpecError, match="'lookup' is not an acceptance rule"):
        candidates(Fixed(0), accept="lookup")
    with pytest.raises(SpecError, match="candidates: k must be at least 1, got 0"):
        candidates(Fixed(0), k=0)


def test_a_model_may_draft_for_itself() -> None:
    """The generator calls the model that pardec decodes with, which then has its own attention."""
    model = network()

    def drafting(ids: torch.Tensor) -> AssistedCandidateGenerator:
        config = copy.deepcopy(model.generation_config)
        config.max_length = 64
        config.update(**config._get_default_generation_params(), defaults_only=True)
        return AssistedCandidateGenerator(
            input_ids=ids,
            assistant_model=model,
            generation_config=config,
            model_kwargs={"use_cache": True},
            inputs_tensor=ids,
            logits_processor=LogitsProcessorList(),
        )

    before = model.config._attn_implementation
    expected, made = both(candidates(drafting), 4, model, max_new_tokens=12)
    assert made.tolist() == expected.tolist()
    assert model.config._attn_implementation == before
