"""Rows that enter and leave a running batch have the tokens of `generate` for each alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.api import Model
from pardec.models.errors import SpecError
from pardec.result import Result
from pardec.serving.running import TokenBatch
from tests.grids import thinned
from tests.pardec.painters import painter
from tests.pardec.vector_painters import vector_painter
from tests.samplers.toys import toy

LENGTHS = (3, 9, 5, 13, 1, 7)
NAMES = ("Tom", "Ann", "Kim", "Bob", "Eva", "Max")


def problems(fewer: int = len(LENGTHS)) -> list[dict[str, Any]]:
    """Prompts of unequal length with unequal numbers of new tokens."""
    return [
        {"prompt": f"{name} has {3 * at} cups. " * (1 + at % 3) + "How many?", "max_new_tokens": new}
        for at, (name, new) in enumerate(zip(NAMES, LENGTHS, strict=True))
    ][:fewer]


def same_alone(model: Model, items: list[dict[str, Any]], *, batch_size: int = 2, **arguments: Any) -> str | None:
    """Serves the items and decodes each alone; returns the reason why the batch let no rows join."""
    serving = model.serve_batch(iter(items), batch_size=batch_size, **arguments)
    served = {row.index: row for row in serving}
    assert sorted(served) == list(range(len(items)))
    for index, item in enumerate(items):
        row = served[index]
        alone = model.generate(**{**arguments, **item, "seed": [row.seed]})
        result = row.result
        assert row.tokens == alone.tokens[0], index
        assert (row.text, row.finish, row.nfe) == (alone.text and alone.text[0], alone.finish[0], alone.nfe[0])
        assert result.tokens_fed == alone.tokens_fed
        assert result.forward_rows == alone.forward_rows
        assert torch.equal(result.sequences, alone.sequences)
        assert result.settings == alone.settings
        steps, others = result.trace.steps[0], alone.trace.steps[0]
        for name in ("positions", "tokens", "fed", "clock"):
            assert [getattr(step, name) for step in steps] == [getattr(step, name) for step in others], (index, name)
        counts = ("drafted", "accepted", "forced")
        assert [getattr(result.trace, name) for name in counts] == [getattr(alone.trace, name) for name in counts]
    return serving.waits


# Greedy and ending at the end token, beside a draw that goes on to the length asked for.
ENDED = (
    "threshold:tau=0.7",
    "threshold:tau=0.7+eos@dual:refresh=3",
    "credit+localleap+prophet:region=block@dual",
    "wino@dual",
    "edit+threshold:tau=0.6",
    "sequential",
    "recycling:tree=4-6-4",
    "jacobi:window=6",
    "model:name=tiny-llama-draft,k=3+dyspec",
    "layerskip:ratio=0.5,k=3,skip=uniform",
    "lookahead:window=4,ngram=3",
    "lookup+typical",
)
MASKED = (
    "threshold:tau=0.7",
    "threshold:tau=0.7@prefix",
    "threshold:tau=0.7+eos@dual:refresh=3",
    "fixed:steps=9,order=random@dkv_greedy",
    "threshold:tau=0.8@dkv:settle=next",
    "timesteps:steps=7@vicinity:before=4,after=4,warmup=2",
    "origin:steps=9@dual",
    "carry@dual:reference=true",
    "credit+localleap+prophet:region=block@dual",
    "klass@prefix",
    "smoothing+threshold:tau=0.7@dual",
    "wino",
    "wino@dual",
    "remdm+threshold@dual",
    "edit+threshold:tau=0.6",
    "confident:tau=0.9,steps=12",
)


def drawn_or_ended(sampler: str, temperature: float) -> bool:
    """Whether a case runs: all sampled cases, and greedy ones for one sampler of each way to join."""
    return temperature > 0 or sampler in ENDED


@pytest.mark.parametrize(
    ("sampler", "temperature"), thinned(product(MASKED, [0.0, 1.0]), lambda sampler, _: sampler in ENDED)
)
@pytest.mark.covers(1)  # test_row_independence.py serves every masked method
def test_masked_rows_join_at_any_step(dream: Model, sampler: str, temperature: float) -> None:
    ends = [] if temperature else None
    waits = same_alone(dream, problems(), sampler=sampler, temperature=temperature, stop_ids=ends)
    assert waits is None


@pytest.mark.parametrize(
    "arguments", [{"cfg": 1.5}, {"block_length": 8}, {"block_length": 8, "block_align": "absolute"}]
)
def test_masked_rows_join_with_guidance_and_other_blocks(dream: Model, arguments: dict[str, Any]) -> None:
    items = [item | {"max_new_tokens": item["max_new_tokens"] + 8} for item in problems(6)]
    assert same_alone(dream, items, sampler="threshold:tau=0.7@dual", **arguments) is None


VERIFIED = (
    "sequential",
    "lookup",
    "copyspec",
    "recycling:tree=4-6-4",
    "jacobi:window=6",
    "jacobi:window=6,policy=block",
    "seeded_jacobi:window=6",
    "sjd:window=6",
    "model:name=tiny-llama-draft,k=3",
    "model:name=tiny-llama-draft,k=3+dyspec",
    "model:name=tiny-llama-draft,k=3+heuristic",
    "model:name=tiny-llama-draft,k=3+calibrated",
    "sorted:name=tiny-llama-draft,tau=0.6,k=3",
    "earlyexit:layers=1,k=3",
    "del:k=4",
    "kangaroo:name=tiny-llama-kangaroo,k=3",
    "mtp:name=tiny-llama-mtp",
    "layerskip:ratio=0.5,k=3,skip=uniform",
    "aggressive",
    "lookahead:window=4,ngram=3",
    "lookahead:window=5,ngram=5,guesses=3,init=random,pool_from_prompt=true",
    "lookup+typical",
)


@pytest.mark.parametrize(("sampler", "temperature"), thinned(product(VERIFIED, [0.0, 1.0]), drawn_or_ended))
@pytest.mark.covers(1)
def test_verified_rows_join_between_rounds(llama: Model, sampler: str, temperature: float) -> None:
    ends = [] if temperature else None
    waits = same_alone(llama, problems(5), sampler=sampler, temperature=temperature, stop_ids=ends)
    assert waits is None


def test_what_cannot_join_waits_and_says_so(dream: Model, llama: Model) -> None:
    few = problems(5)
    searched = llama.serve_batch(few, batch_size=2, sampler="layerskip:ratio=0.5,k=3,skip=search")
    assert sorted(row.index for row in searched) == [0, 1, 2, 3, 4]
    assert searched.waits == "the state Skipping is only for rows that begin together"
    assert same_alone(dream, few, sampler="oracle") == "sequential decodes the rows of a request beforehand"


# --- what limits the tokens of a row ---


def limited(count: int = 7) -> list[dict[str, Any]]:
    """Rows of unequal length: some free, the others with allowed sets at different positions."""
    items: list[dict[str, Any]] = []
    for at in range(count):
        length = (5, 14, 3, 9, 20, 1, 8)[at]
        ids = [[20 + at, 23 + 2 * at, 60 + at], [40 + at]]
        sets = {index: ids[index % 2] for index in range(at % 3, length, 2)}
        item = {"prompt": f"{NAMES[at % 6]} has {at} cups. " * (1 + at % 2), "max_new_tokens": length}
        items.append(item if at % 3 == 1 else item | {"allowed": sets})
    return items


LIMITED_MASKED = ("threshold:tau=0.3", "threshold:tau=0.3@dual", "fixed:steps=9,order=random@dkv_greedy", "wino@prefix")


@pytest.mark.parametrize("sampler", [*LIMITED_MASKED, "edit:tau=0.2+threshold:tau=0.6", "credit+threshold@dual"])
def test_rows_with_and_without_allowed_tokens_share_a_masked_batch(dream: Model, sampler: str) -> None:
    assert same_alone(dream, limited(), sampler=sampler, temperature=0.8, stop_ids=[]) is None


@pytest.mark.parametrize(
    "sampler", ["sequential", "lookup", "model:name=tiny-llama-draft,k=3", "sjd:window=5", "jacobi:window=4"]
)
def test_rows_with_and_without_allowed_tokens_share_a_verified_batch(llama: Model, sampler: str) -> None:
    assert same_alone(llama, limited(), sampler=sampler, temperature=0.8, stop_ids=[]) is None


def test_rows_of_other_logits_processors_never_share_a_batch(llama: Model) -> None:
    def without(token: int) -> Any:
        return lambda ids, scores: scores.index_fill(1, torch.tensor([token]), -torch.inf)

    first = llama.generate("Tom has 3", max_new_tokens=2).tokens[0][0]
    processors = [[without(first)], [without(first + 1)], None]
    calls = [llama.prepare("Tom has 3", max_new_tokens=4, logits_processor=each) for each in processors]
    rows = {row.index: row.tokens for row in llama.serve(calls, batch_size=3)}
    for index, each in enumerate(processors):
        assert rows[index] == llama.generate("Tom has 3", max_new_tokens=4, logits_processor=each).tokens[0]
    assert rows[0][0] != rows[2][0]


# --- images ---


@pytest.mark.parametrize("sampler", ["sequential", "sjd:window=5", "zipar:window=2", "lookup:context=grid"])
def test_pictures_of_captions_join_with_their_conditions(tmp_path: Path, sampler: str) -> None:
    model = pardec.load(painter(tmp_path / "captions", "text"), device="cpu")
    items = [{"prompt_embeds": torch.randn(1, 1 + at % 3, 8, generator=torch.manual_seed(at))} for at in range(5)]
    for item in items:
        item["seed"] = 100 + len(item["prompt_embeds"][0])
    waits = same_alone(model, items, sampler=sampler, temperature=1.0, cfg=2.0, cfg_interval=6)
    assert waits is None


def test_pictures_of_classes_join_beside_a_drafting_model(tmp_path: Path) -> None:
    folder = painter(tmp_path / "classes", "class")
    model = pardec.load(folder, device="cpu")
    items: list[dict[str, Any]] = [{"label": at % 3} for at in range(5)]
    assert same_alone(model, items, sampler=f'model:name="{folder}",k=3', temperature=1.0, cfg=1.5) is None
    with model.serve_batch(items[:3], batch_size=2, temperature=1.0) as serving:
        row = next(serving)
    alone = model.generate(**items[row.index], seed=[row.seed], temperature=1.0)
    assert row.image.tobytes() == alone.images[0].tobytes()


def test_pictures_of_vectors_are_drawn_a_batch_at_a_time(tmp_path: Path) -> None:
    model = pardec.load(vector_painter(tmp_path / "vectors"), device="cpu")
    serving = model.serve_batch(({"label": at} for at in range(3)), batch_size=2, sampler="mar:steps=4")
    found = {row.index: row for row in serving}
    assert serving.waits == "images with continuous tokens are generated a whole batch at a time"
    for at, row in found.items():
        alone = model.generate(label=at, sampler="mar:steps=4", seed=[row.seed])
        assert row.result.latents is not None
        near = 3e-4 * float(alone.latents.abs().max())  # how a batch is multiplied rounds otherwise than a row alone
        torch.testing.assert_close(row.result.latents, alone.latents, atol=near, rtol=0)


# --- what is served ---


def test_seeds_are_those_of_a_batch_and_prompts_are_read_as_places_become_free(dream: Model) -> None:
    read: list[int] = []

    def prompts() -> Iterator[str]:
        for at in range(6):
            read.append(at)
            yield f"Tom has {at} cups. He"

    arguments: dict[str, Any] = {"sampler": "threshold", "max_new_tokens": 6, "temperature": 1.0, "seed": 3}
    serving = dream.serve_batch(prompts(), batch_size=2, **arguments)
    assert read == []
    first = next(serving)
    assert len(read) == 2
    rows = {row.index: row for row in (first, *serving)}
    whole = dream.generate([f"Tom has {at} cups. He" for at in range(6)], **arguments)
    assert [rows[at].tokens for at in range(6)] == whole.tokens
    assert [rows[at].seed for at in range(6)] == whole.seeds
    assert (serving.rows, serving.tokens) == (6, whole.timing.tokens)
    assert serving.forwards == sum(whole.nfe)
    assert serving.seconds > 0


def test_every_form_of_a_prompt(llama: Model, tmp_path: Path) -> None:
    ids = llama.tokenizer("Tom has 3 cups.")["input_ids"]
    forms: list[Any] = ["Tom has 3 cups.", {"prompt": "Tom has 3 cups."}, {"input_ids": ids, "max_new_tokens": 2}]
    rows = sorted(llama.serve_batch(forms, batch_size=2, max_new_tokens=4, stop_ids=[]), key=lambda row: row.index)
    assert rows[0].tokens == rows[1].tokens
    assert rows[2].tokens == rows[0].tokens[:2]
    assert (rows[2].finish, rows[2].nfe) == ("length", 2)
    assert Result.load(rows[0].result.save(tmp_path / "row")).text == [rows[0].text]


def test_a_template_and_an_end_of_its_own_wait_for_the_batch_to_drain(dream: Model) -> None:
    items: list[dict[str, Any]] = [*problems(2), {"template": "8 - <mask> = <mask>"}, *problems(1)]
    same_alone(dream, items, sampler="threshold:tau=0.7@dual")


def test_nothing_to_serve_is_nothing_served(dream: Model) -> None:
    assert list(dream.serve_batch([])) == []


def test_a_prompt_that_cannot_work_is_told_when_those_before_it_are_done(dream: Model) -> None:
    serving = dream.serve_batch(["Tom", "Ann", " ", "Kim"], batch_size=1, max_new_tokens=2)
    assert [next(serving).index, next(serving).index] == [0, 1]
    with pytest.raises(SpecError, match="prompt 2 of serve_batch: prompt 0 is empty"):
        next(serving)


@pytest.mark.parametrize(
    ("prompts", "arguments", "message"),
    [
        ("Tom", {}, "prompts must be an iterable"),
        (["Tom"], {"batch_size": 0}, "batch_size must be a whole number"),
        (["Tom"], {"seed": [1]}, "seed is one number"),
        (["Tom"], {"label": 1}, "serve_batch takes no label="),
        (["Tom"], {"num_images": 2}, "serve_batch takes no num_images="),
        (["Tom"], {"max_new_token": 2}, "generate takes no argument"),
        ([{"prompt": "Tom", "sed": 1}], {}, "has an unknown field 'sed' \\(did you mean 'seed'"),
        ([["Tom", "Ann"]], {}, "prompt 0 of serve_batch is a list"),
    ],
)
def test_what_cannot_be_served_is_refused(dream: Model, prompts: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        list(dream.serve_batch(prompts, **arguments))


def test_a_long_run_frees_the_memory_of_finished_rows(
    dream: Model, llama: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (dream, llama):
        prompts = ({"prompt": "Tom", "max_new_tokens": 1 + at % 5} for at in range(24))
        loops: list[Any] = []
        original = TokenBatch._start

        def start(batch: Any, rows: Any, running: Any = None, original: Any = original, loops: Any = loops) -> Any:
            loops.append(original(batch, rows, running))
            return loops[-1]

        monkeypatch.setattr(TokenBatch, "_start", start)
        assert len(list(model.serve_batch(prompts, batch_size=2))) == 24
        monkeypatch.undo()
        loop = loops[0]
        history = loop.recorder.history if model is dream else loop.forward.fed
        assert len(history) <= 12


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_row_that_fails_while_it_is_decoded_ends_alone(llama: Model, size: int) -> None:
    wrong = 2

    def refuse(ids: Any, scores: Any) -> Any:
        if (ids[:, : len(marked)] == torch.tensor(marked)).all(1).any():
            raise ValueError("not this one")
        return scores

    prompts = [f"Tom has {at} cups." for at in range(6)]
    marked = llama.tokenizer(prompts[wrong])["input_ids"]
    arguments: dict[str, Any] = {"max_new_tokens": 5, "stop_ids": []}
    serving, got = llama.serve_batch(prompts, batch_size=size, logits_processor=[refuse], **arguments), {}
    with pytest.raises(ValueError, match="not this one"):
        got.update((row.index, row.tokens) for row in serving)
    assert sorted(got) == [0, 1, 3, 4, 5]
    assert list(serving.failed) == [wrong]
    for at, tokens in got.items():
        assert tokens == list(llama.generate(prompts[at], **arguments).tokens[0])


def test_a_stage_that_moves_tokens_is_served_where_nothing_goes_by_positions() -> None:
    model = Model(toy("llada2", sharp=1.2))
    given: dict[str, Any] = {"sampler": "threshold+levenshtein:delete=3,split=4", "max_new_tokens": 4, "stop_ids": []}
    served = [row.tokens for row in model.serve_batch([{"input_ids": [5, 6, 7], "seed": 1}], **given)]
    assert served == [list(model.generate(input_ids=[[5, 6, 7]], seed=[1], **given).tokens[0])]
