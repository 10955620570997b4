"""Autoregressive models from end to end: parity with transformers, arguments, streams, traces, views, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from transformers.generation.logits_process import (
    MinLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

import pardec
from pardec.models.errors import SpecError
from pardec.result import Result
from pardec.samplers.events import Accepted, RowFinished
from tests.models.toys import SMALL
from tests.samplers.ar_toys import g_test, joint

TEXTS = ["Tom has 12 apples. He buys 7 more.", "Ann has 8 cups.", "Sort: 5 3 9 1", "Copy: a b c a b c a b c a"]
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 2}),
    "llama, tied, one key head": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama, odd head size": ("Llama", {"num_key_value_heads": 4, "head_dim": 20, "num_hidden_layers": 3}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "num_hidden_layers": 3}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 20}),
    "qwen3, tied": ("Qwen3", {"num_key_value_heads": 4, "head_dim": 8, "tie_word_embeddings": True}),
}
Pair = tuple[Any, pardec.Model]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """A random model in transformers and in pardec, by its name in SHAPES."""

    @cache
    def made(name: str) -> Pair:
        kind, changes = SHAPES[name]
        config = getattr(transformers, f"{kind}Config")(**SMALL | {"pad_token_id": 0} | changes)
        folder = tmp_path_factory.mktemp("random")
        with torch.random.fork_rng():
            torch.manual_seed(len(name))
            network = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
            for weight in network.parameters():
                torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
        network.save_pretrained(folder)
        return network, pardec.load(folder, device="cpu", dtype="float32")

    return made


def ids(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    render = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 61, (length,), generator=render).tolist() for length in lengths]


def theirs(network: Any, prompt: list[int], new: int, **options: Any) -> list[int]:
    with torch.inference_mode():
        out = network.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


# --- parity with transformers ---


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_decoding_is_that_of_transformers(pair: Callable[[str], Pair], name: str) -> None:
    network, model = pair(name)
    given = ids((5, 1, 13, 21), seed=len(name))
    expected = [theirs(network, prompt, 20) for prompt in given]
    for sampler in ("sequential", "lookup"):
        got = model.generate(input_ids=given, sampler=sampler, max_new_tokens=20)
        assert got.tokens == expected
        assert got.finish == ["stop" if row[-1] == 2 else "length" for row in expected]
        assert got.exact == "greedy"


@pytest.mark.parametrize("sampler", ["sequential", "lookup"])
def test_their_processors_give_what_they_give_there(pair: Callable[[str], Pair], sampler: str) -> None:
    network, model = pair("llama")
    given = [[5, 6, 7, 5, 6, 7, 5, 6], *ids((4, 11), seed=3)]
    for processors in (
        [RepetitionPenaltyLogitsProcessor(1.7)],
        [NoRepeatNGramLogitsProcessor(2)],
        [MinLengthLogitsProcessor(18, 2), RepetitionPenaltyLogitsProcessor(1.3), NoRepeatNGramLogitsProcessor(3)],
    ):
        got = model.generate(input_ids=given, sampler=sampler, max_new_tokens=16, logits_processor=processors)
        kept = transformers.LogitsProcessorList(processors)
        assert got.tokens == [theirs(network, prompt, 16, logits_processor=kept) for prompt in given]


def test_logits_are_those_of_transformers(pair: Callable[[str], Pair]) -> None:
    for name in SHAPES:
        network, model = pair(name)
        tokens = torch.tensor(ids((17, 17)))
        with torch.inference_mode():
            torch.testing.assert_close(model.logits(tokens), network(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", ["sequential", "lookup+speculative", "lookup+match", "lookup+match:noise=seeded"])
def test_samples_follow_the_law_of_the_checkpoint(pair: Callable[[str], Pair], sampler: str) -> None:
    """Two sampled tokens after a repetitive prompt, over four tokens of the vocabulary."""
    _, model = pair("llama")
    prompt, count = [5, 6, 7, 5, 6, 7, 5, 6], 2000
    distribution = joint(model.language_model, prompt, 2, temperature=0.9, top_k=4)
    found = model.generate(
        input_ids=[prompt] * count, sampler=sampler, max_new_tokens=2, stop_ids=[], temperature=0.9, top_k=4, seed=1
    )
    counts = torch.zeros(distribution.shape, dtype=torch.int64)
    for first, second in found.tokens:
        counts[first, second] += 1
    assert abs(g_test(counts.numpy(), distribution)) < 4
    assert found.exact == "distribution" or sampler == "sequential"


# --- arguments ---


@pytest.mark.parametrize("sampler", ["sequential", "lookup"])
def test_allowed_tokens_of_each_position_hold(pair: Callable[[str], Pair], sampler: str) -> None:
    _, model = pair("qwen2")
    given = ids((6, 3))

    def choice(row: int, index: int) -> list[int] | None:
        return [[10, 11, 12], None, [20 + row]][index % 3]

    got = model.generate(input_ids=given, sampler=sampler, max_new_tokens=9, stop_ids=[], allowed=choice)
    for row, tokens in enumerate(got.tokens):
        assert all(token in (10, 11, 12) for token in tokens[::3])
        assert tokens[2::3] == [20 + row] * 3
    for row, prompt in enumerate(given):
        text = list(prompt)
        for index in range(9):
            distributions = model.logits(torch.tensor([text]))[0, -1]
            kept = choice(row, index)
            text.append(int(distributions.argmax()) if kept is None else kept[int(distributions[kept].argmax())])
        assert got.tokens[row] == text[len(prompt) :]


def test_end_tokens_stop_a_row_and_none_let_it_run(pair: Callable[[str], Pair]) -> None:
    _, model = pair("llama")
    (prompt,) = ids((6,))
    free = model.generate(input_ids=[prompt], max_new_tokens=12, stop_ids=[])
    assert len(free.tokens[0]) == 12
    assert free.finish == ["length"]
    stop = free.tokens[0][5]
    ended = model.generate(input_ids=[prompt], max_new_tokens=12, stop_ids=stop)
    at = free.tokens[0].index(stop)
    assert ended.tokens[0] == free.tokens[0][: at + 1]
    assert ended.generated == [at]
    assert ended.finish == ["stop"]
    assert ended.sequences.shape[1] == 6 + at + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"template": "a"}, "left to right"),
        ({"cfg": 1.5}, "cfg is for masked models"),
        ({"block_length": 4}, "block_length is for masked models"),
        ({"sampler": "threshold"}, "masked"),
        ({"sampler": "lookup+greedy", "temperature": 0.5}, "is for sampling"),
        ({"sampler": "greedy", "temperature": 1.0}, "'greedy' accepts the likeliest tokens"),
        ({"sampler": "lookup@dual"}, "is for masked models"),
        ({"sampler": "lookup:k=0"}, "k must be at least 1"),
        ({"logits_processor": 3}, "a list of processors"),
    ],
)
def test_what_cannot_work_is_refused(llama: pardec.Model, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        llama.generate("Ann has 8 cups.", **{"max_new_tokens": 4, **arguments})


# --- streams and events ---


@pytest.mark.parametrize("sampler", ["sequential", "lookup"])
def test_the_pieces_of_a_stream_make_up_the_text(llama: pardec.Model, sampler: str) -> None:
    whole = llama.generate(TEXTS, sampler=sampler, max_new_tokens=24)
    told = [""] * len(TEXTS)
    rounds = 0
    for event in llama.stream(TEXTS, sampler=sampler, max_new_tokens=24):
        if isinstance(event, Accepted):
            rounds += 1
            for row, piece in zip(event.rows.tolist(), event.text, strict=True):
                told[row] += piece
                assert (whole.text or [])[row].startswith(told[row])
        elif isinstance(event, RowFinished):
            told[event.row] += event.text or ""
            assert told[event.row] == (whole.text or [])[event.row]
    assert told == whole.text
    assert rounds == max(whole.nfe)


def test_a_stream_may_be_left_at_any_time_and_a_callback_sees_it_all(llama: pardec.Model) -> None:
    for event in llama.stream(TEXTS, sampler="lookup", max_new_tokens=24):
        if isinstance(event, Accepted) and event.number == 3:
            break
    seen: list[Any] = []
    result = llama.generate(TEXTS[3], sampler="lookup", max_new_tokens=24, callback=seen.append)
    rounds = [event for event in seen if isinstance(event, Accepted)]
    assert [int(event.gained[0]) for event in rounds] == [len(step.positions) for step in result.trace.steps[0]]


# --- what a result holds ---


def test_a_result_says_what_was_drafted_and_accepted(llama: pardec.Model, tmp_path: Path) -> None:
    result = llama.generate(TEXTS, sampler="lookup:k=6", max_new_tokens=24, stop_ids=[])
    trace = result.trace
    for row in range(len(TEXTS)):
        assert len(trace.drafted[row]) == len(trace.accepted[row]) == result.nfe[row]
        assert all(
            0 <= kept <= drafted <= 6 for drafted, kept in zip(trace.drafted[row], trace.accepted[row], strict=True)
        )
        assert sum(trace.accepted[row]) + result.nfe[row] == 24
        assert result.tokens_fed[row] == result.prompts[row] + sum(trace.drafted[row]) + result.nfe[row] - 1
        assert [step.fed[0] for step in trace.steps[row][1:]] == [
            step.positions[0] - 1 for step in trace.steps[row][1:]
        ]
    rounds = sum(result.nfe) - len(TEXTS)
    assert result.acceptance_length == pytest.approx((4 * 24 - 4) / rounds)
    assert result.padding <= 0.3 * sum(result.tokens_fed)
    for target in (tmp_path / "folder", tmp_path / "one.json"):
        again = Result.load(result.save(target))
        assert again.trace.drafted == trace.drafted
        assert again.trace.accepted == trace.accepted
        assert again.trace.fed == trace.fed
        assert (again.trace.commit_step == trace.commit_step).all()
        assert (again.padding, again.draft_forwards, again.deviation) == (result.padding, [0] * 4, [0.0] * 4)
        assert (again.tokens, again.text, again.exact, again.spec) == (
            result.tokens,
            result.text,
            "greedy",
            result.spec,
        )
        assert again.acceptance_length == result.acceptance_length


def test_acceptance_length_counts_what_was_committed(pair: Callable[[str], Pair]) -> None:
    """If an end token cuts an accepted draft short, the tokens after it do not count."""
    _, model = pair("llama")
    pattern = [10, 20, 30, 40, 50]

    def periodic(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Used in place of `allowed`, whose forced tokens do not count as accepted."""
        return scores.index_fill(1, torch.tensor(pattern[ids.shape[1] % 5]), 1e4)

    def asked(stop_ids: list[int]) -> Result:
        return model.generate(
            input_ids=[pattern * 2],
            sampler="lookup:k=4",
            max_new_tokens=20,
            stop_ids=stop_ids,
            logits_processor=[periodic],
        )

    free = asked([])
    assert free.trace.accepted == ((0, 4, 4, 4, 3),)
    assert free.acceptance_length == 19 / 4
    assert asked([30]).trace.accepted == ((0, 4),)  # the second of four that the rule accepts
    assert asked([30]).tokens == [pattern[:3]]
    assert asked([30]).acceptance_length == 2


# --- the command and the views ---


def test_the_command_streams_what_it_prints(cli: Callable[..., tuple[int, str, str]]) -> None:
    asked = ("generate", "tiny-llama", "-p", TEXTS[0], "--max-new-tokens", 20, "--device", "cpu")
    code, plain, _ = cli(*asked, "-s", "lookup")
    assert code == 0
    code, streamed, _ = cli(*asked, "-s", "lookup", "--stream")
    assert code == 0
    assert streamed.strip() == plain.strip() != ""
    code, out, _ = cli(*asked, "-s", "lookup", "--json")
    assert code == 0
    assert json.loads(out)


def test_a_result_is_seen_as_a_page_a_picture_and_a_film(
    llama: pardec.Model, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    saved = llama.generate(TEXTS[0], sampler="lookup", max_new_tokens=12).save(tmp_path / "result.json")
    for option, name in (("--html", "page.html"), ("--png", "order.png"), ("--gif", "order.gif")):
        code, _, err = cli("view", saved, option, tmp_path / name)
        assert code == 0, err
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert Image.open(tmp_path / "order.png").size[0] > 10
    film = Image.open(tmp_path / "order.gif")
    assert getattr(film, "n_frames", 1) >= 2
