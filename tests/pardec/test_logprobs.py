"""Log-probabilities and commit order: in results, files, events, served rows and --json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec import RowFinished, SpecError
from pardec.api import Model
from pardec.io.saving import ResultError
from pardec.result import Result
from pardec.result_data import one_row
from tests.pardec.painters import painter
from tests.pardec.serving.test_serving import problems
from tests.pardec.vector_painters import vector_painter

PROMPTS = ["Tom has 8 cups. He loses 3. How many cups does Tom have now?", "Reverse the list: 4 7 2 9 1."]
WANTED: dict[str, Any] = {"logprobs": 3, "logprob_ids": [7, 5]}


@pytest.fixture(scope="module")
def both(dream: Model) -> Result:
    return dream.generate(PROMPTS, sampler="threshold:tau=0.9", max_new_tokens=12, **WANTED)


def compare(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Asserts that two results have equal arrays, up to the rounding of forwards of other shapes."""
    assert list(one) == list(other)
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_allclose(array, other[name], atol=1e-4 if array.dtype == np.float32 else 0, err_msg=name)


# --- results ---


def test_values_are_aligned_with_the_tokens_of_an_autoregressive_model(llama: Model) -> None:
    """Log-probabilities equal those of the text's own forward, even if sampled, drafted and stopped within a round."""
    stop = {"stop": ["7"], "temperature": 0.7, "sampler": "lookup"}
    result = llama.generate([*PROMPTS, "Repeat: 4 7 2"], max_new_tokens=16, seed=2, **WANTED, **stop)
    assert {"stop"} <= set(result.finish)
    for row, tokens in enumerate(result.tokens):
        start, end = result.prompts[row], result.prompts[row] + len(tokens)
        every = llama.logits(result.sequences[row : row + 1, :end])[0, start - 1 : end - 1].log_softmax(-1)
        own = every.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        np.testing.assert_allclose(result.token_logprobs[row], own, atol=1e-4)
        np.testing.assert_allclose(result.top_logprobs[row].top, every.topk(3).values, atol=1e-4)
        np.testing.assert_allclose(result.candidate_logprobs[row], every[:, [7, 5]], atol=1e-4)
        steps = result.step_map[row]
        assert len(steps) == len(tokens)
        assert (np.diff(steps) >= 0).all()
        assert steps[0] == 0
        assert steps.max() < result.nfe[row]


def test_the_sampling_distribution_follows_from_the_whole_raw_one(dream: Model) -> None:
    """As the guide states: divide by the temperature and remove the mask token."""
    size, mask = dream.language_model.vocab_size, dream.language_model.decoding_config.mask_id
    options: dict[str, Any] = {"max_new_tokens": 8, "sampler": "threshold", "temperature": 0.7}
    result = dream.generate(PROMPTS[0], logprobs=size, **options)
    row = result.top_logprobs[0]
    np.testing.assert_allclose(np.exp(row.top).sum(-1), 1, atol=1e-4)
    logits = torch.from_numpy(np.where(row.ids == mask, -np.inf, row.top)) / 0.7
    sampled = logits.log_softmax(-1)[torch.from_numpy(row.ids == np.array(result.tokens[0])[:, None])]
    # The first forward saw the whole canvas open.
    canvas = torch.full((1, result.prompts[0] + 8), mask)
    canvas[0, : result.prompts[0]] = result.sequences[0, : result.prompts[0]]
    tokens, start = result.tokens[0], result.prompts[0]
    raw = dream.logits(canvas)[0, start - 1 : start - 1 + len(tokens)]
    raw = raw.masked_fill(torch.arange(size) == mask, -torch.inf)
    expected = (raw / 0.7).log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    first = result.step_map[0] == 0
    assert first.any()
    np.testing.assert_allclose(sampled[first], expected[first], atol=1e-3)


def test_what_a_template_gives_has_no_forward(dream: Model) -> None:
    text = "8 - <mask> = <mask>; answer <mask>"
    result = dream.generate(PROMPTS[0], template=text, sampler="sequential", **WANTED)
    mask = dream.language_model.decoding_config.mask_id
    given = np.array(dream.tokenizer(text, add_special_tokens=False)["input_ids"]) != mask
    assert given.any()
    assert (result.step_map[0] == np.where(given, -1, [int(x) for x in np.cumsum(~given) - 1])).all()
    assert (np.isnan(result.token_logprobs[0]) == given).all()


def test_step_maps_are_always_there_and_end_with_the_tokens(dream: Model, llama: Model) -> None:
    result = dream.generate(PROMPTS, sampler="fixed:steps=6,order=random", max_new_tokens=12, seed=5)
    assert (result.token_logprobs, result.top_logprobs, result.candidate_logprobs) == (None, None, None)
    for row, tokens in enumerate(result.tokens):
        assert len(tokens) < 12  # an end token inside the canvas
        span = result.trace.commit_step[row, result.prompts[row] :][: len(tokens)]
        assert result.step_map[row].tolist() == span.tolist()
    assert llama.generate("Repeat: 4", max_new_tokens=3, stop_ids=[]).step_map[0].tolist() == [0, 1, 2]


def test_arrays_are_padded_on_the_right(both: Result) -> None:
    arrays = both.to_arrays(pad_id=9)
    longest, prompt = max(map(len, both.tokens)), max(both.prompts)
    assert {name: array.shape for name, array in arrays.items()} == {
        "prompts": (2, prompt),
        "prompt_mask": (2, prompt),
        "tokens": (2, longest),
        "mask": (2, longest),
        "step_map": (2, longest),
        "token_logprobs": (2, longest),
        "top_ids": (2, longest, 3),
        "top_logprobs": (2, longest, 3),
        "candidate_logprobs": (2, longest, 2),
    }
    for row, tokens in enumerate(both.tokens):
        mask = arrays["mask"][row]
        assert arrays["tokens"][row, mask].tolist() == tokens
        assert (arrays["tokens"][row, ~mask] == 9).all()
        assert (np.isfinite(arrays["token_logprobs"][row]) == mask).all()
        assert ((arrays["step_map"][row] >= 0) == mask).all()
        assert arrays["prompts"][row, arrays["prompt_mask"][row]].tolist() == both.sequences[row].tolist()[
            : both.prompts[row]
        ]  # fmt: skip
    assert len({*map(len, both.tokens)}) == 2


def test_a_row_of_a_result_has_its_own(both: Result, dream: Model) -> None:
    for row, prompt in enumerate(PROMPTS):
        alone = dream.generate(prompt, sampler=both.spec, max_new_tokens=12, seed=[both.seeds[row]], **WANTED)
        compare(one_row(both, row).to_arrays(), alone.to_arrays())
        assert alone.settings == both.settings


@pytest.mark.parametrize("name", ["run", "run.json"])
def test_what_is_loaded_is_what_was_saved(both: Result, dream: Model, tmp_path: Path, name: str) -> None:
    loaded = Result.load(both.save(tmp_path / name))
    for mine, theirs in zip(both.to_arrays().values(), loaded.to_arrays().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert loaded.rows() == both.rows()
    assert loaded.settings == both.settings
    own = Result.load(dream.generate(PROMPTS[0], max_new_tokens=4, logprobs=0).save(tmp_path / f"own-{name}"))
    assert own.top_logprobs is None
    assert own.token_logprobs is not None
    off = Result.load(dream.generate(PROMPTS[0], max_new_tokens=4).save(tmp_path / f"off-{name}"))
    assert off.token_logprobs is None


def test_damaged_files_are_refused(both: Result, tmp_path: Path) -> None:
    file = both.save(tmp_path / "run.json")
    document = json.loads(file.read_text())
    for name in ("token_logprobs", "top_ids", "candidate_logprobs"):
        parts = {**document["tensors"], name: document["tensors"][name][:1]}
        file.write_text(json.dumps({**document, "tensors": parts}))
        with pytest.raises(ResultError, match=name):
            Result.load(file)


def test_minus_infinity_is_written_as_json_can_hold_it(both: Result, tmp_path: Path) -> None:
    """A trimmed head gives ids outside of it probability 0; JSON has no -inf."""
    both.trace.logprobs.candidates[0, both.prompts[0], 0] = -np.inf
    file = both.save(tmp_path / "run.json")
    assert "Infinity" not in file.read_text()
    assert "NaN" not in file.read_text()
    loaded = Result.load(file).candidate_logprobs
    assert loaded[0][0, 0] == -np.inf
    json.dumps(both.rows(), allow_nan=False)


# --- events, served rows, commands ---


@pytest.mark.parametrize("name", ["dream", "llama"])
def test_a_finished_row_of_a_stream_has_them(name: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    whole = model.generate(PROMPTS, max_new_tokens=8, **WANTED)
    call = model.prepare(PROMPTS, max_new_tokens=8, **WANTED)
    for event in model.run(call):
        if isinstance(event, RowFinished):
            assert model.row(call, event) == whole.rows()[event.row]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dream", {"sampler": "threshold:tau=0.7+eos@dual:refresh=3"}),
        ("dream", {"sampler": "credit+localleap+prophet:region=block@dual", "temperature": 1.0}),
        ("dream", {"sampler": "edit+threshold:tau=0.6", "cfg": 1.5}),
        ("dream", {"sampler": "wino@dual"}),
        ("llama", {"sampler": "lookup"}),
        ("llama", {"sampler": "model:name=tiny-llama-draft,k=3+dyspec", "temperature": 1.0}),
        ("llama", {"sampler": "eagle:name=tiny-llama-eagle,k=4+beam"}),
    ],
)
def test_served_rows_have_those_of_the_row_alone(
    name: str, arguments: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    items = problems()
    serving = model.serve_batch(iter(items), batch_size=2, **arguments, **WANTED)
    rows = list(serving)
    assert serving.waits is None
    assert len(rows) == len(items)
    for row in rows:
        alone = model.generate(**items[row.index], **arguments, **WANTED, seed=[row.seed])
        assert row.tokens == alone.tokens[0]
        compare(row.result.to_arrays(), alone.to_arrays())
        assert row.result.settings == alone.settings


def test_rows_that_want_others_share_no_batch(llama: Model) -> None:
    wanted: list[dict[str, Any]] = [{}, {"logprobs": 0}, {"logprobs": 2}, {"logprob_ids": [3]}, {"logprob_ids": [4]}]
    calls = [llama.prepare(PROMPTS[1], max_new_tokens=4, **options) for options in wanted]
    served = {row.index: row.result for row in llama.serve(calls, batch_size=5)}
    assert served[0].token_logprobs is None
    assert served[1].top_logprobs is None
    assert served[2].top_logprobs is not None
    three, four = served[3].candidate_logprobs, served[4].candidate_logprobs
    assert not np.allclose(three[0], four[0])
    own = [served[index].token_logprobs for index in range(1, 5)]
    for values in own:
        np.testing.assert_allclose(values[0], own[0][0], atol=1e-5)  # type: ignore[index]


def test_codes_of_images_have_them_and_continuous_tokens_do_not(tmp_path: Path) -> None:
    model = pardec.load(painter(tmp_path / "classes", "class"), device="cpu")
    result = model.generate(label=1, temperature=1.0, cfg=1.5, sampler="sjd:window=4", logprobs=2)
    assert np.isfinite(result.token_logprobs[0]).all()
    assert len(result.step_map[0]) == len(result.tokens[0]) == len(result.token_logprobs[0])
    plain = model.generate(label=1, temperature=1.0, cfg=1.5, sampler="sequential", logprobs=2)
    assert plain.step_map[0].tolist() == list(range(len(plain.tokens[0])))
    vectors = pardec.load(vector_painter(tmp_path / "vectors"), device="cpu")
    for name, value in (("logprobs", 0), ("logprob_ids", [1])):
        with pytest.raises(SpecError, match=f"{name} is for tokens with ids"):
            vectors.generate(label=1, **{name: value})
    image = vectors.generate(label=1, sampler="mar:steps=4")
    assert image.step_map[0].tolist() == image.trace.commit_step[0].tolist()
    assert image.token_logprobs is None
    with pytest.raises(SpecError, match="continuous tokens have none"):
        image.to_arrays()


def test_json_and_rows_files_have_them(cli: Callable[..., tuple[int, str, str]], folder: Path, tmp_path: Path) -> None:
    command = ("generate", folder, "-p", "Tom has 3", "-p", "Ann", "-n", 5, "-s", "threshold:tau=0.5", "--logprobs", 2)
    code, out, _ = cli(*command, "--json", "--batch-size", 2)
    assert code == 0
    model = pardec.load(folder, device="cpu")
    result = model.generate(["Tom has 3", "Ann"], max_new_tokens=5, sampler="threshold:tau=0.5", logprobs=2)
    names = ("tokens", "step_map", "token_logprobs", "top_ids", "top_logprobs")
    for row, expected in zip(json.loads(out)["rows"], result.rows(), strict=True):
        assert {name: row[name] for name in names} == {name: expected[name] for name in names}
        assert "candidate_logprobs" not in row
    for more in ((), ("--batch-size", 1)):
        file = tmp_path / f"rows{len(more)}.jsonl"
        assert cli(*command, "-o", file, *more)[0] == 0
        assert all(set(names) <= set(json.loads(line)) for line in file.read_text().splitlines())
        assert json.loads(cli(*command, "-o", file, *more, "--json")[1])["rows"][0]["step_map"]
    without = json.loads(cli(*command[:-2], "--json")[1])["rows"][0]
    assert not set(names[1:]) & set(without)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logprobs": -1}, "logprobs must be a whole number of at least 0, got -1"),
        ({"logprobs": True}, "logprobs must be a whole number of at least 0, got True"),
        ({"logprobs": 1.5}, "logprobs must be a whole number"),
        ({"logprobs": 10**6}, "logprobs=1000000 is more than the vocabulary of 361"),
        ({"logprob_ids": [3, 361]}, "logprob_ids holds 361, which is not an id in the vocabulary of 361"),
        ({"logprob_ids": [-1]}, "logprob_ids holds -1"),
        ({"logprob_ids": "ab"}, "logprob_ids holds 'ab'"),
    ],
)
def test_what_cannot_be_recorded_is_refused(model: Model, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        model.prepare("Ann", **arguments)
    assert caught.value.hint


def test_candidates_alone_imply_the_tokens_own(model: Model) -> None:
    call = model.prepare("Ann", logprob_ids=torch.tensor([4, 4]))
    assert (call.request.logprobs, call.request.logprob_ids) == (0, (4, 4))
    assert call.settings["logprobs"] == 0
    assert call.take([0]).request.logprob_ids == (4, 4)
    assert "logprobs" not in model.prepare("Ann").settings
