"""pardec in lm-eval: scores compared with plain generation, likelihoods with enumeration and plain loops."""

from __future__ import annotations

import ast
import json
import math
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval._cli.utils import key_val_to_dict, try_parse_json
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import LlamaConfig, LlamaForCausalLM

import pardec
from pardec.interop.lm_eval import PardecLM
from pardec.interop.lm_eval.requests import generation, split_arguments
from pardec.likelihood import Likelihood, masks
from pardec.models.errors import ModelError, SpecError
from pardec.models.files.catalog import TOKENIZER
from pardec.models.model import LanguageModel
from pardec.token_probabilities import Batches, Query, TokenProbabilities
from tests.samplers import toys

ROOT = Path(__file__).resolve().parents[3]
TASKS = Path(__file__).parents[1] / "lm_eval_task"
PROBLEMS = [json.loads(line) for line in (TASKS / "problems.jsonl").read_text().splitlines()]
QUESTIONS = [problem["question"] for problem in PROBLEMS]
pytestmark = pytest.mark.usefixtures("without_versions")
COMMAS = "wino:draft=0.6,verify=0.9+eos@dual:refresh=8"


def evaluate(model: PardecLM | str, task: str, **arguments: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics and samples of one of the local tasks."""
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    result = simple_evaluate(model=model, tasks=[task], task_manager=manager, bootstrap_iters=0, **arguments)
    return result["results"][task], sorted(result["samples"][task], key=lambda sample: sample["doc_id"])


def asks(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, 0, ("task", i, 1)) for i, each in enumerate(arguments)]  # type: ignore[arg-type]


def scorer(model: LanguageModel, rows: int = 64, **arguments: Any) -> Likelihood:
    return Likelihood(TokenProbabilities(model, Batches(rows), cfg=arguments.pop("cfg", None)), **arguments)


# --- naive references, on full logits and one row at a time ---


def naive(model: LanguageModel, canvas: list[int], position: int, cfg: tuple[float, int] | None = None) -> torch.Tensor:
    """log p(. at position | canvas) [V]; guided if cfg (strength, number of hidden tokens) is given."""
    decoding_config = model.decoding_config
    logits = pardec.Model(model).logits(torch.tensor([canvas]))[0, max(position - decoding_config.shift, 0)]
    if cfg is not None:
        assert decoding_config.mask_id is not None
        blind = [decoding_config.mask_id] * cfg[1] + canvas[cfg[1] :]
        other = pardec.Model(model).logits(torch.tensor([blind]))[0, max(position - decoding_config.shift, 0)]
        logits = other + cfg[0] * (logits - other)
    return logits.double().log_softmax(-1)


def chain(model: LanguageModel, prefix: list[int], target: list[int], order: Sequence[int], **more: Any) -> float:
    """The chain rule in a given order."""
    assert model.decoding_config.mask_id is not None
    canvas, total = prefix + [model.decoding_config.mask_id] * len(target), 0.0
    for i in order:
        total += float(naive(model, canvas, len(prefix) + i, **more)[target[i]])
        canvas[len(prefix) + i] = target[i]
    return total


def expectation(model: LanguageModel, prefix: list[int], target: list[int], **more: Any) -> float:
    """The mean of the chain rule over all orders, to which the paper's estimator converges."""
    orders = list(permutations(range(len(target))))
    return sum(chain(model, prefix, target, order, **more) for order in orders) / len(orders)


# --- generation ---


@pytest.mark.parametrize("sampler", ["threshold:tau=0.9@dual", COMMAS])
def test_the_score_is_that_of_plain_generation(dream: pardec.Model, sampler: str) -> None:
    plain = dream.generate(QUESTIONS[:8], sampler=sampler, max_new_tokens=48).text
    right = [text.split("\n")[0] == problem["answer"] for text, problem in zip(plain or [], PROBLEMS, strict=False)]
    model = PardecLM(dream, sampler=sampler, max_new_tokens=48, batch_size=6)
    metrics, samples = evaluate(model, "pardec_local_generate", limit=8)
    assert [sample["resps"][0][0] for sample in samples] == [text.split("\n")[0] for text in plain or []]
    assert metrics["exact_match,none"] == pytest.approx(sum(right) / len(right))
    assert sum(right) > 0, "the comparison says nothing where nothing is right"


@pytest.mark.skipif(torch.cuda.is_available(), reason="lm-eval's default device is there")
def test_lm_evals_default_device_is_auto_without_cuda() -> None:
    assert PardecLM("tiny-dream", device="cuda:0").model.network.device.type != "cuda"
    with pytest.raises(pardec.PardecError, match="cuda"):
        PardecLM("tiny-dream", device="cuda")


def test_a_limit_a_batch_size_and_a_device_come_from_the_harness(dream: pardec.Model) -> None:
    arguments = {"pretrained": "tiny-dream", "sampler": "threshold:tau=0.9@dual"}
    _, samples = evaluate(
        "pardec", "pardec_local_generate", model_args=arguments, limit=3, batch_size=2, device="cpu",
        gen_kwargs={"max_gen_toks": 12},
    )  # fmt: skip
    plain = dream.generate(QUESTIONS[:3], sampler="threshold:tau=0.9@dual", max_new_tokens=12).text
    assert [sample["resps"][0][0] for sample in samples] == plain


def test_a_chat_template_is_applied_once(dream: pardec.Model) -> None:
    model = PardecLM(dream, sampler="threshold", max_new_tokens=32, batch_size=4)
    _, samples = evaluate(model, "pardec_local_generate", apply_chat_template=True, limit=4)
    talks = [[{"role": "user", "content": question}] for question in QUESTIONS[:4]]
    plain = dream.generate(talks, sampler="threshold", max_new_tokens=32)
    assert [sample["resps"][0][0] for sample in samples] == plain.text
    prompt = samples[0]["arguments"][0][0]
    assert prompt.startswith("<bos>")
    assert model.tok_encode(prompt).count(dream.tokenizer.bos_token_id) == 1
    assert model.tokenizer_name


def test_a_sampled_text_depends_on_seed_and_prompt_not_on_the_batch(dream: pardec.Model) -> None:
    asked = [(question, {"do_sample": True, "temperature": 4.0, "max_gen_toks": 12}) for question in QUESTIONS[:4]]
    made = {}
    for name, requests, batch, seed in (
        ("alone", asked, 1, 1),
        ("together", asked, 4, 1),
        ("turned", asked[::-1], 3, 1),
        ("other", asked, 4, 2),
        ("twice", [asked[0]] * 2, 2, 1),
    ):
        model = PardecLM(dream, sampler="random+fixed:steps=4", batch_size=batch, seed=seed)
        made[name] = model.generate_until(asks("generate_until", *requests), disable_tqdm=True)
    assert made["alone"] == made["together"] == made["turned"][::-1]
    assert made["other"] != made["together"]
    assert made["twice"][0] == made["alone"][0]
    assert made["twice"][1] != made["twice"][0]


def test_the_seed_is_the_harness_s_unless_one_is_given(dream: pardec.Model) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(77)
        assert PardecLM(dream).seed == 77
        assert PardecLM(dream, seed=3).seed == 3


def test_until_ends_a_text_at_the_first_of_its_texts(dream: pardec.Model) -> None:
    (whole,) = dream.generate(QUESTIONS[0], sampler="sequential", max_new_tokens=32).text or []
    until = [" = ", ";", "never there"]
    assert whole.index(" = ") < whole.index(";")
    model = PardecLM(dream, sampler="sequential", max_new_tokens=32)
    asked = asks("generate_until", (QUESTIONS[0], {"until": until}), (QUESTIONS[0], {"until": ";"}))
    assert model.generate_until(asked) == [whole.split(" = ")[0], whole.split(";")[0]]


def test_until_a_special_token_ends_the_row(monkeypatch: pytest.MonkeyPatch, dream: pardec.Model) -> None:
    seen: list[Any] = []
    prepare = dream.prepare
    monkeypatch.setattr(dream, "prepare", lambda *options, **more: seen.append(prepare(*options, **more)) or seen[-1])
    PardecLM(dream, max_new_tokens=4).generate_until(asks("generate_until", (QUESTIONS[0], {"until": ["<pad>"]})))
    assert [call.stop_ids for call in seen] == [(3, 0)]  # the end token and that of the text


def test_a_context_too_long_loses_its_beginning(dream: pardec.Model) -> None:
    long = " ".join(QUESTIONS)
    model = PardecLM(dream, sampler="threshold", max_new_tokens=16, max_length=100)
    (text,) = model.generate_until(asks("generate_until", (long, {})))
    ids = dream.tokenizer(long)["input_ids"][-84:]
    assert [text] == dream.generate(input_ids=[ids], sampler="threshold", max_new_tokens=16).text
    with pytest.raises(SpecError, match="100 new tokens leave no room"):
        model.generate_until(asks("generate_until", (long, {"max_gen_toks": 100})))


def test_cached_answers_are_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, dream: pardec.Model, tmp_path: Path
) -> None:
    arguments = {"limit": 4, "use_cache": str(tmp_path / "answers")}
    first, _ = evaluate(PardecLM(dream, sampler="threshold"), "pardec_local_generate", **arguments)
    monkeypatch.setattr(PardecLM, "_generate", None)
    again, _ = evaluate(PardecLM(dream, sampler="threshold"), "pardec_local_generate", **arguments)
    assert again["exact_match,none"] == first["exact_match,none"]


@pytest.mark.parametrize(
    ("asked", "defaults", "expected"),
    [
        ({}, {}, {"max_new_tokens": 256}),
        ({}, {"max_new_tokens": 64, "temperature": 0.5}, {"max_new_tokens": 64, "temperature": 0.5}),
        ({"max_gen_toks": 8, "max_tokens": 9}, {"max_new_tokens": 64}, {"max_new_tokens": 8}),
        ({"max_tokens": 9}, {"block_length": 32}, {"max_new_tokens": 9, "block_length": 9}),
        ({"do_sample": False, "temperature": 0.7}, {}, {"max_new_tokens": 256, "temperature": 0.0}),
        ({"do_sample": True}, {}, {"max_new_tokens": 256, "temperature": 1.0}),
        ({"do_sample": True}, {"temperature": 0.3}, {"max_new_tokens": 256, "temperature": 0.3}),
        (
            {"temperature": 0.7, "top_p": 0.9, "top_k": -1},
            {},
            {"max_new_tokens": 256, "temperature": 0.7, "top_p": 0.9},
        ),
        ({}, {"sampler": "preset:fast-dllm"}, {"sampler": "preset:fast-dllm"}),
        ({"sampler": "sequential"}, {"sampler": "threshold"}, {"max_new_tokens": 256, "sampler": "sequential"}),
        ({"num_beams": 1, "length_penalty": 2.0}, {}, {"max_new_tokens": 256}),
        (
            {"until": "\n", "repetition_penalty": 1.2, "min_new_tokens": 3, "min_p": 0.1},
            {},
            {"stop": ["\n"], "repetition_penalty": 1.2, "min_new_tokens": 3, "min_p": 0.1, "max_new_tokens": 256},
        ),
    ],
)
def test_what_a_request_asks_comes_before_the_defaults(
    asked: dict[str, Any], defaults: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert generation(asked, defaults).arguments == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"num_beams": 3}, "num_beams=3"),
        ({"min_length": 40}, "min_length=40"),
        ({"bad_words_ids": [[5]]}, "bad_words_ids"),
        ({"temprature": 3.0}, "did you mean 'temperature'"),
    ],
)
def test_an_argument_that_would_change_the_text_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        generation(asked, {})


# --- beside lm-eval's own model ---


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama as transformers saves it, with the embedded tokenizer."""
    made = tmp_path_factory.mktemp("models") / "random-llama"
    shape = {"vocab_size": 361, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = LlamaForCausalLM(LlamaConfig(**shape, **heads, **ends))
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    network.save_pretrained(made)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, made)
    return made


@pytest.fixture(scope="module")
def beside(checkpoint: Path) -> Callable[..., tuple[PardecLM, HFLM]]:
    model = pardec.load(checkpoint, device="cpu", dtype="float32")

    def both(**arguments: Any) -> tuple[PardecLM, HFLM]:
        hf = HFLM(pretrained=str(checkpoint), device="cpu", dtype="float32", batch_size=2, **arguments)
        return PardecLM(model, batch_size=2, **arguments), hf

    return both


SCORED = [(QUESTIONS[0], " 18 - 4"), ("<bos>" + QUESTIONS[1], " 5"), ("", QUESTIONS[2]), ("Tom has ", "3 cups")]
LONG = " ".join(QUESTIONS[:6])  # of more windows than one


@pytest.mark.parametrize(
    "arguments", [{}, {"add_bos_token": True}, {"add_bos_token": False}, {"prefix_token_id": 3}, {"max_length": 40}]
)
def test_likelihoods_are_those_of_lm_evals_own_model(beside: Any, arguments: dict[str, Any]) -> None:
    ours, hf = beside(**arguments)
    pairs = asks("loglikelihood", *SCORED)
    texts = asks("loglikelihood_rolling", (QUESTIONS[0],), ("<bos>" + QUESTIONS[1],), (LONG,))
    mine, theirs = ([value for value, _ in model.loglikelihood(pairs, disable_tqdm=True)] for model in (ours, hf))
    assert mine == pytest.approx(theirs, abs=1e-3)
    mine, theirs = (model.loglikelihood_rolling(texts, disable_tqdm=True) for model in (ours, hf))
    assert mine == pytest.approx(theirs, abs=1e-3)


def test_generation_arguments_do_what_they_do_in_lm_evals_own_model(
    beside: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ours, hf = beside()
    prompt = QUESTIONS[0]
    length = len(hf.tok_encode(prompt))
    (plain,) = hf.generate_until(asks("generate_until", (prompt, {"until": ["never"], "max_gen_toks": 20})))
    for asked in (
        {"repetition_penalty": 1.5},
        {"min_new_tokens": 12},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 0.5},
        {"max_length": length + 5},
        {"until": [plain[9:12], plain[4:6]]},
    ):
        call = asks("generate_until", (prompt, {"until": ["never"], "max_gen_toks": 20, **asked}))
        (mine,), (theirs,) = ours.generate_until(call), hf.generate_until(call)
        assert mine == theirs, asked
    assert "left out" not in caplog.text


@pytest.mark.parametrize("arguments", [{}, {"add_bos_token": True}, {"add_bos_token": False}], ids=str)
@pytest.mark.parametrize("prefix", [None, 3])
@pytest.mark.covers(1)
def test_a_context_begins_as_in_lm_evals_own_model(beside: Any, arguments: dict[str, Any], prefix: int | None) -> None:
    """A context begins with the tokenizer's first token, as a chat template writes it, not with scoring's prefix."""
    ours, hf = beside(**arguments, prefix_token_id=prefix)
    for start in ("<bos>", "<eos>", ""):
        call = asks("generate_until", (start + QUESTIONS[0], {"until": [], "max_gen_toks": 8}))
        assert ours.generate_until(call) == hf.generate_until(call), start


def test_a_length_of_prompt_and_answer_leaves_room_or_says_so(beside: Any) -> None:
    ours, _ = beside()
    with pytest.raises(SpecError, match="max_length=3 leaves no room"):
        ours.generate_until(asks("generate_until", (QUESTIONS[0], {"max_length": 3})))


@pytest.mark.parametrize("asked", [{"max_gen_toks": 20}, {"max_tokens": 40}, {"max_gen_toks": 63}], ids=str)
@pytest.mark.parametrize("longest", [50, 60, 64])
@pytest.mark.covers(1)
def test_a_long_context_is_cut_as_by_lm_evals_own_model(beside: Any, asked: dict[str, Any], longest: int) -> None:
    """`max_gen_toks` sets how much of the context is kept, and `max_length` where the answer ends."""
    ours, hf = beside()
    assert len(hf.tok_encode(LONG)) > 64
    call = asks("generate_until", (LONG, {"until": [], "max_length": longest, **asked}))
    assert ours.generate_until(call) == hf.generate_until(call)


def test_runs_that_are_not_to_come_again_are_of_texts_that_grow_at_their_end(dream: pardec.Model, llama: Any) -> None:
    call = asks("generate_until", (QUESTIONS[0], {"until": [], "max_gen_toks": 8, "no_repeat_ngram_size": 2}))
    with pytest.raises(SpecError, match="no_repeat_ngram_size=2 needs left-to-right decoding"):
        PardecLM(dream).generate_until(call)
    call[0].args[1]["no_repeat_ngram_size"] = -1
    with pytest.raises(SpecError, match="at least 1, got -1"):
        PardecLM(llama).generate_until(call)
    call[0].args[1]["no_repeat_ngram_size"] = 0
    assert PardecLM(dream).generate_until(call)


def test_numbers_that_are_not_finite_are_no_likelihood(checkpoint: Path) -> None:
    for name, at in (("norm.weight", 5), ("head.weight", (4, 5))):
        model = pardec.load(checkpoint, device="cpu", dtype="float32")
        weight = dict(model.network.decoder.named_parameters())[name]  # type: ignore[union-attr]
        weight.data[at] = float("inf")
        for ask in ("loglikelihood", "loglikelihood_rolling"):
            with pytest.raises(ModelError, match=f"its weight {name} holds NaN or infinity"):
                getattr(PardecLM(model), ask)(asks(ask, ("Tom has ", "3 cups")), disable_tqdm=True)


# --- likelihoods ---

PREFIX, TARGET = [3, 1, 4, 1, 5], [2, 0, 3, 1]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cfg", [None, 1.5])
@pytest.mark.covers(1)
def test_a_short_answer_gets_the_mean_over_all_orders(family: str, cfg: float | None) -> None:
    model = toys.toy(family, vocab=9, sharp=1.0)
    ((value, _),) = scorer(model, mc_num=15, cfg=cfg, rows=4).score([(PREFIX, TARGET)])
    guided = {} if cfg is None else {"cfg": (cfg, len(PREFIX))}
    assert value == pytest.approx(expectation(model, PREFIX, TARGET, **guided), abs=1e-4)


def test_monte_carlo_converges_to_the_mean_over_all_orders() -> None:
    model, target = toys.toy("dream", vocab=9, sharp=1.0), [2, 0, 3, 1, 4]
    truth = expectation(model, PREFIX, target)
    likelihood = scorer(model, rows=2000, mc_num=8)
    draws = torch.tensor([likelihood.score([(PREFIX, target)], seed=seed)[0][0] for seed in range(300)]).double()
    assert len({round(value, 6) for value in draws.tolist()}) > 100
    error = float(draws.std()) / math.sqrt(len(draws))
    assert error < 0.1
    assert abs(float(draws.mean()) - truth) < 3.5 * error
    # Orders of unequal weight would be off by more than the error allows: the test detects wrong estimates.
    assert abs(chain(model, PREFIX, target, range(5)) - truth) > 5 * error
    # Sixteen times the masks leave about a quarter of the spread, or less: systematic sampling.
    long = [1, 2, 0, 3, 1, 4, 2, 0, 3, 5]
    spread = [
        float(torch.tensor([each.score([(PREFIX, long)], seed=seed)[0][0] for seed in range(24)]).std())
        for each in (scorer(model, rows=2000, mc_num=count, check_greedy=False) for count in (4, 64))
    ]
    assert spread[1] < 0.4 * spread[0]


@pytest.mark.parametrize(("length", "limit"), [(1, 1), (4, 15), (4, 14), (9, 7), (30, 128)])
def test_each_token_of_an_answer_is_expected_once(length: int, limit: int) -> None:
    patterns = masks(length, key=5, limit=limit)
    assert len(patterns) <= limit
    assert len({pattern.masked for pattern in patterns}) == len(patterns)
    assert sum(pattern.weight * len(pattern.queried) for pattern in patterns) == pytest.approx(length)
    times = torch.zeros(length)
    keys = 300 if length < 30 else 40
    for key in range(keys):
        for pattern in masks(length, key=key, limit=limit):
            times[list(pattern.queried)] += pattern.weight / keys
    assert times.sub(1).abs().max() < 0.35


def test_a_table_of_laws_by_hand() -> None:
    distributions = torch.tensor(
        [[0.25, 0.25, 0.2, 0.1, 0.1, 0.1], [0.5, 0.2, 0.1, 0.1, 0.05, 0.05], [0.1, 0.6, 0.1, 0.1, 0.05, 0.05]]
    )
    model = toys.table(distributions)
    hand = math.log(0.5) + math.log(0.1)
    for kind in ("mc", "chain", "confident"):
        assert scorer(model, kind=kind).score([([0], [0, 2])]) == [(pytest.approx(hand, abs=1e-5), False)]
        assert scorer(model, kind=kind).score([([0], [0, 1])]) == [(pytest.approx(math.log(0.5 * 0.6), abs=1e-5), True)]
    assert scorer(model, kind="mc", check_greedy=False).score([([0], [0, 1])])[0][1] is False


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_chain_rule_from_left_to_right_and_by_confidence(family: str) -> None:
    model = toys.toy(family, vocab=9, sharp=1.0)
    pairs = [(PREFIX, TARGET), (PREFIX[:2], TARGET + PREFIX), ([7], [2])]  # unequal lengths, in one batch
    left = [value for value, _ in scorer(model, kind="chain").score(pairs)]
    assert left == pytest.approx([chain(model, *pair, order=range(len(pair[1]))) for pair in pairs], abs=1e-4)
    sure = [value for value, _ in scorer(model, kind="confident").score(pairs)]
    assert sure == pytest.approx([chain(model, *pair, order=surest(model, *pair)) for pair in pairs], abs=1e-4)
    assert surest(model, *pairs[1]) != list(range(len(pairs[1][1])))


def surest(model: LanguageModel, prefix: list[int], target: list[int]) -> list[int]:
    """The order in which `sequential` commits the positions if every committed token is the target's."""
    assert model.decoding_config.mask_id is not None
    canvas, left, order = prefix + [model.decoding_config.mask_id] * len(target), list(range(len(target))), []
    while left:
        distributions = {i: naive(model, canvas, len(prefix) + i).clone() for i in left}
        for distribution in distributions.values():
            distribution[model.decoding_config.mask_id] = -torch.inf
        order.append(max(left, key=lambda i: float(distributions[i].log_softmax(-1).max())))
        left.remove(order[-1])
        canvas[len(prefix) + order[-1]] = target[order[-1]]
    return order


@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
def test_a_block_causal_answer_is_scored_block_by_block(family: str) -> None:
    model = toys.toy(family, vocab=9, sharp=1.0)  # blocks of 4: positions 5..7, 8..11, 12
    target = [2, 0, 3, 1, 2, 5, 0, 4]
    units = [(PREFIX, target[:3]), (PREFIX + target[:3], target[3:7]), (PREFIX + target[:7], target[7:])]
    expected = sum(expectation(model, *unit) for unit in units)
    assert scorer(model).score([(PREFIX, target)])[0][0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", list(toys.FAMILIES))
@pytest.mark.parametrize("kind", ["mc", "confident"])
def test_greedy_is_what_sequential_decoding_makes(family: str, kind: str) -> None:
    model = toys.toy(family, sharp=1.0)
    prompts = toys.prompts([5, 6, 9])
    block = {} if "sdar" in family else {"block_length": 7}
    made = pardec.Model(model).generate(
        input_ids=prompts, sampler="sequential", max_new_tokens=7, stop_ids=[], **block
    ).tokens  # fmt: skip
    pairs = list(zip(prompts, made, strict=True))
    likelihood = scorer(model, kind=kind, mc_num=4)
    assert [greedy for _, greedy in likelihood.score(pairs)] == [True] * 3
    for index in (0, 6):
        wrong = [
            (prompt, [(token + 1) % 17 if i == index else token for i, token in enumerate(tokens)])
            for prompt, tokens in pairs
        ]
        assert [greedy for _, greedy in likelihood.score(wrong)] == [False] * 3


def test_answers_to_one_context_share_their_masks_and_no_batch_changes_a_value() -> None:
    model = toys.toy("llada", sharp=1.0)
    first, second = toys.prompts([5, 5], seed=2)
    answers = toys.prompts([9, 9, 9], seed=3)
    pairs = [(first, answers[0]), (first, answers[1]), (second, answers[2])]
    together = scorer(model, rows=64, mc_num=8).score(pairs, seed=4)
    alone = [scorer(model, rows=3, mc_num=8).score([pair], seed=4)[0] for pair in reversed(pairs)]
    assert [value for value, _ in together] == pytest.approx([value for value, _ in reversed(alone)], abs=1e-4)
    keys = [unit.key for pair in pairs for unit in scorer(model)._units(*pair, seed=4)]
    assert keys[0] == keys[1] != keys[2]


def test_the_head_in_parts_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toys.toy("dream")
    queries = [Query(prompt, [2, 4, 5], [1, 2, 3]) for prompt in toys.prompts([7, 9])]
    whole = TokenProbabilities(model, Batches(2)).query(queries)
    monkeypatch.setattr("pardec.token_probabilities._LOGITS", 1)
    for one, other in zip(whole, TokenProbabilities(model, Batches(2)).query(queries), strict=True):
        assert torch.allclose(one.log_prob, other.log_prob)
        assert torch.equal(one.best, other.best)


def ar_log_prob(model: pardec.Model, context: list[int], answer: list[int]) -> tuple[float, bool]:
    distributions = model.logits(torch.tensor([context + answer]))[0].double().log_softmax(-1)[len(context) - 1 : -1]
    picked = distributions.gather(-1, torch.tensor(answer)[:, None])
    return float(picked.sum()), distributions.argmax(-1).tolist() == answer


def test_an_ar_model_is_scored_exactly(llama: pardec.Model) -> None:
    model = PardecLM(llama, batch_size=3)
    pairs = [(problem["question"], f" {choice}") for problem in PROBLEMS[:3] for choice in problem["choices"]]
    result = model.loglikelihood(asks("loglikelihood", *pairs), disable_tqdm=True)
    greedy = 0
    for (question, choice), (value, flag) in zip(pairs, result, strict=True):
        context, whole = (llama.tokenizer(text)["input_ids"] for text in (question, question + choice))
        expected = ar_log_prob(llama, context, whole[len(context) :])
        assert value == pytest.approx(expected[0], abs=1e-3)
        assert flag == expected[1]
        greedy += flag
    assert 0 < greedy < len(result)


def test_an_empty_context_is_the_first_token_and_an_empty_answer_is_certain(llama: pardec.Model) -> None:
    model = PardecLM(llama)
    (one, two) = model.loglikelihood(asks("loglikelihood", ("", "Tom has"), ("Tom has", "")), disable_tqdm=True)
    ids = llama.tokenizer("Tom has")["input_ids"]
    assert one[0] == pytest.approx(ar_log_prob(llama, ids[:1], ids[1:])[0], abs=1e-4)
    assert two == (0.0, True)


def test_a_context_of_spaces_without_a_bos_token_is_the_first_token(llama: pardec.Model) -> None:
    """lm-eval moves the spaces to the answer, which leaves no token before it."""
    model = PardecLM(llama, add_bos_token=False)
    (value,) = model.loglikelihood(asks("loglikelihood", ("  ", "Tom has")), disable_tqdm=True)
    context, answer = model._encode_pair("  ", "Tom has")
    assert context == []
    assert value[0] == pytest.approx(ar_log_prob(llama, [model.prefix_token_id], answer)[0], abs=1e-4)


def test_rolling_predicts_every_token_once_in_windows(llama: pardec.Model, dream: pardec.Model) -> None:
    ids = llama.tokenizer(QUESTIONS[0])["input_ids"]  # the first token is predicted too, as lm-eval's `hf` does
    assert 16 < len(ids) < 32
    assert ids[0] == 2
    asked = asks("loglikelihood_rolling", (QUESTIONS[0],))
    (whole,) = PardecLM(llama).loglikelihood_rolling(asked, disable_tqdm=True)
    assert whole == pytest.approx(ar_log_prob(llama, [2], ids)[0], abs=1e-3)
    (rolled,) = PardecLM(llama, max_length=16).loglikelihood_rolling(asked, disable_tqdm=True)
    expected = ar_log_prob(llama, [2], ids[:16])[0]
    tail = len(ids) - 16  # predicted after as much context as fits
    expected += ar_log_prob(llama, ids[-17:-tail], ids[-tail:])[0]
    assert rolled == pytest.approx(expected, abs=1e-3)
    masked = PardecLM(dream, max_length=16, mc_num=2, check_greedy=False, batch_size=8)
    assert masked.loglikelihood_rolling(asked, disable_tqdm=True)[0] < 0


def test_multiple_choice_takes_the_likeliest_choice(dream: pardec.Model) -> None:
    model = PardecLM(dream, likelihood="chain", check_greedy=False, batch_size=8)
    metrics, samples = evaluate(model, "pardec_local_choose", limit=2)
    best, normed = 0, 0
    for problem, sample in zip(PROBLEMS, samples, strict=False):
        context = dream.tokenizer(problem["question"])["input_ids"]
        values = []
        for choice in problem["choices"]:
            ids = dream.tokenizer(f"{problem['question']} {choice}")["input_ids"][len(context) :]
            values.append(chain(dream.language_model, context, ids, range(len(ids))))
        calls = [response[0][0] for response in sample["resps"]]
        assert calls == pytest.approx(values, abs=1e-3)
        right = problem["choices"].index(problem["answer"])
        best += max(range(4), key=values.__getitem__) == right
        normed += max(range(4), key=lambda i: values[i] / len(problem["choices"][i])) == right
    assert metrics["acc,none"] == pytest.approx(best / 2)
    assert metrics["acc_norm,none"] == pytest.approx(normed / 2)


def test_masked_scoring_tells_right_from_wrong_choices(dream: pardec.Model) -> None:
    model = PardecLM(dream, mc_num=8, check_greedy=False, batch_size=32)
    metrics, _ = evaluate(model, "pardec_local_choose", limit=8)
    assert metrics["acc,none"] >= 0.75  # chance is 0.25


def test_an_answer_longer_than_the_model_is_refused(dream: pardec.Model) -> None:
    with pytest.raises(SpecError, match="does not fit the length 8 of tiny-dream"):
        PardecLM(dream, max_length=8).loglikelihood(asks("loglikelihood", ("Tom", QUESTIONS[0])), disable_tqdm=True)


# --- arguments and installation ---


@pytest.mark.parametrize("quote", ["'", '"'])
def test_specs_survive_every_way_of_writing_model_args(quote: str) -> None:
    text = f"pretrained=tiny-dream,sampler={quote}{COMMAS}{quote},max_new_tokens=64,seed=7"
    for options in (key_val_to_dict(text), try_parse_json(json.dumps({"pretrained": "tiny-dream", "sampler": COMMAS}))):
        made = PardecLM.create_from_arg_obj(options, {"batch_size": "4", "max_batch_size": None, "device": "cpu"})
        assert (made.defaults["sampler"], made.batch_size) == (COMMAS, 4)
    made = PardecLM.create_from_arg_string(text, {"batch_size": 2, "device": "cpu"})
    assert (made.defaults, made.seed) == ({"sampler": COMMAS, "max_new_tokens": 64}, 7)
    plain = key_val_to_dict("pretrained=tiny-dream,sampler=credit+threshold:tau=0.9@dual:refresh=8,max_new_tokens=64")
    assert PardecLM.create_from_arg_obj(plain).defaults == {
        "sampler": "credit+threshold:tau=0.9@dual:refresh=8",
        "max_new_tokens": 64,
    }
    assert split_arguments("") == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (key_val_to_dict(f"sampler={COMMAS}"), "takes no argument 'verify'"),
        ({"samplr": "threshold"}, "did you mean 'sampler'"),
        ({"sampler": "treshold"}, "did you mean 'threshold'"),
        ({"likelihood": "mcmc"}, "unknown likelihood 'mcmc' (did you mean 'mc'?)"),
        ({"mc_num": 0}, "mc_num must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1"),
    ],
)
def test_a_wrong_argument_is_named(dream: pardec.Model, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        PardecLM(dream, **arguments)
    assert message in str(caught.value)
    assert caught.value.hint


def test_what_cannot_be_is_said_before_anything_runs(dream: pardec.Model, llama: pardec.Model) -> None:
    with pytest.raises(SpecError, match="tiny-llama is an AR model"):
        PardecLM(llama, cfg=2.0)
    with pytest.raises(SpecError, match="has no tokenizer"):
        PardecLM(pardec.Model(toys.toy()))
    with pytest.raises(ModelError):
        PardecLM("no-such-model", device="cpu")
    with pytest.raises(SpecError, match="is not name=value"):
        split_arguments("pretrained=tiny-dream,threshold")


def test_auto_batches_halve_when_memory_runs_out() -> None:
    def work(items: Sequence[int]) -> list[int]:
        if len(items) > 3:
            raise MemoryError
        return list(items)

    batches = Batches(16, auto=True)
    made = [item for count, items in batches.run(range(10), work) for item in items if count == len(items)]
    assert (made, batches.size) == (list(range(10)), 3)
    with pytest.raises(MemoryError):
        list(Batches(16).run(range(10), work))


def test_results_record_how_it_was_scored(dream: pardec.Model, llama: pardec.Model) -> None:
    model = PardecLM(dream, sampler="threshold", mc_num=4, seed=1)
    model.generate_until(asks("generate_until", (QUESTIONS[0], {"max_gen_toks": 4})), disable_tqdm=True)
    calls = model.get_model_info()["pardec"]
    assert (calls["model"], calls["sampler"]) == ("tiny-dream", "threshold")
    assert calls["specs"] == [dream.generate(QUESTIONS[0], sampler="threshold", max_new_tokens=4).spec]
    assert (calls["likelihood"], calls["mc_num"], calls["seed"]) == ("mc", 4, 1)
    json.dumps(calls)
    assert "likelihood" not in PardecLM(llama).get_model_info()["pardec"]


def test_the_harness_finds_the_model_by_name_and_by_entry_point() -> None:
    assert get_model("pardec") is PardecLM
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["lm_eval.models"]
    assert EntryPoint("pardec", points["pardec"], "lm_eval.models").load() is PardecLM


def test_nothing_else_imports_the_harness() -> None:
    def imported(file: Path) -> set[str]:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}

    ours = ROOT / "pardec" / "interop" / "lm_eval"
    others = [file for floor in ("pardec", "samplers", "models") for file in (ROOT / floor).rglob("*.py")]
    others = [file for file in others if ours not in file.parents and "lm_eval" in file.read_text()]
    assert others
    assert [file for file in others for name in imported(file) if name.split(".")[0] == "lm_eval"] == []


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pardec.interop.lm_eval", "run", "--model", "pardec", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    task = ("--include_path", str(TASKS), "--tasks", "pardec_local_generate", "--limit", "2", "--device", "cpu")
    done = run("--model_args", f'pretrained=tiny-dream,sampler="{COMMAS}",max_new_tokens=64', *task)
    assert done.returncode == 0, done.stderr
    assert "exact_match" in done.stdout
    wrong = run("--model_args", "pretrained=tiny-dream,sampler=treshold", *task)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-2].startswith("error: unknown")
