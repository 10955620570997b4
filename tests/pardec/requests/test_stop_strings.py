"""Stop strings: where a row ends, for any commit order, alone, batched, served, streamed, with each tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.requests.stop_strings import StopStrings
from pardec.samplers.events import RowFinished, Step
from pardec.serving.streaming import Texts
from tests.grids import chequered
from tests.pardec.serving.test_streaming import byte_fallback, byte_level, cleaning, pieces_of, run_of

QUESTION = "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"
OTHER = "Ann has 8 cups. She loses 3. How many cups does Ann have now?"
AR = ("sequential", "lookup", "jacobi", "sjd", "recycling", "model:name=tiny-llama-draft", "lookahead")
MASKED = ("sequential", "threshold:tau=0.9", "threshold+eos", "credit+threshold+eos@dual", "wino", "remdm+threshold")


def naive(tokenizer: Any, tokens: list[int], stop: tuple[str, ...]) -> tuple[list[int], str]:
    """Searches the whole text again after each token."""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count], skip_special_tokens=True)
        ends = [(text.find(one) + len(one), text.find(one)) for one in stop if one in text]
        if ends:
            return tokens[:count], text[: min(ends)[1]]
    return tokens, tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("kind", [byte_level, byte_fallback, cleaning])
def test_any_stop_string_in_any_tokenizer_is_found_where_a_naive_reader_finds_it(kind: Any) -> None:
    tokenizer, texts = kind()
    cases = 0
    for at, tokens in enumerate(texts):
        whole = tokenizer.decode(tokens, skip_special_tokens=True)
        render = np.random.RandomState(at)
        for _ in range(12):
            starts = render.randint(0, len(whole), 2)
            stop = tuple(part for start in starts if (part := whole[start : start + render.randint(1, 5)]))
            found = StopStrings(tokenizer, stop).first(tokens)
            made, text = naive(tokenizer, tokens, stop)
            assert (tokens if found is None else tokens[:found]) == made, (stop, whole)
            for seed in range(2):
                call, events = run_of(tokens, (), seed)
                call = replace(call, request=replace(call.request, stops=(StopStrings(tokenizer, stop),)))
                ((*pieces, last),) = pieces_of(map(Texts(tokenizer, call), events))
                assert "".join([*pieces, last]) == text, (stop, whole)
                cases += 1
    assert cases > 50


@pytest.mark.parametrize(
    ("sampler", "stop"), chequered(AR, [(" = 1",), (";", "= 1"), ("14",), ("never",), ("answer 2", "r 26")])
)
@pytest.mark.covers(1)
def test_an_ar_row_ends_with_the_token_that_completes_it(llama: pardec.Model, sampler: str, stop: Any) -> None:
    whole = llama.generate([QUESTION, OTHER], sampler="sequential")
    result = llama.generate([QUESTION, OTHER], sampler=sampler, stop=list(stop))
    for row, tokens in enumerate(whole.tokens):
        made, text = naive(llama.tokenizer, tokens, stop)
        assert (result.tokens[row], result.text[row], result.finish[row]) == (made, text, "stop")
        assert result.generated[row] == sum(token != 3 for token in made)
        length = result.prompts[row] + len(made)
        assert int(result.trace.lengths[row]) == length  # nothing after it was decoded
        assert sum(len(step.positions) for step in result.trace.steps[row]) == len(made)
        alone = llama.generate([QUESTION, OTHER][row], sampler=sampler, stop=list(stop), seed=[result.seeds[row]])
        assert (alone.tokens, alone.nfe) == ([result.tokens[row]], [result.nfe[row]])
    if sampler == "sequential":
        assert result.nfe == [len(tokens) for tokens in result.tokens]


@pytest.mark.parametrize("sampler", MASKED)
@pytest.mark.parametrize("stop", [(" = 1",), (";", "= 1"), ("never",)])
@pytest.mark.covers(1)
def test_a_masked_row_ends_once_all_before_is_final(dream: pardec.Model, sampler: str, stop: Any) -> None:
    whole = dream.generate([QUESTION, OTHER], sampler=sampler, max_new_tokens=32)
    result = dream.generate([QUESTION, OTHER], sampler=sampler, max_new_tokens=32, stop=list(stop))
    for row, tokens in enumerate(whole.tokens):
        assert (result.tokens[row], result.text[row]) == naive(dream.tokenizer, tokens, stop)
        assert result.finish[row] == ("stop" if result.tokens[row] != tokens else whole.finish[row])
        assert result.nfe[row] <= whole.nfe[row]
        alone = dream.generate(
            [QUESTION, OTHER][row], sampler=sampler, max_new_tokens=32, stop=list(stop), seed=[result.seeds[row]]
        )
        assert (alone.tokens, alone.nfe) == ([result.tokens[row]], [result.nfe[row]])
    if sampler == "sequential" and stop != ("never",):
        assert result.nfe[0] < whole.nfe[0]  # it does not fill what nobody reads


@pytest.mark.parametrize("name", ["llama", "dream"])
def test_streams_never_tell_what_may_become_a_stop_string(name: str, request: pytest.FixtureRequest) -> None:
    model: pardec.Model = request.getfixturevalue(name)
    sampler = "sequential" if name == "llama" else "leftmost"
    told = ""
    for event in model.stream(QUESTION, sampler=sampler, max_new_tokens=32, stop="= 14; 14 + 12 = 26; never"):
        if isinstance(event, Step) and event.text is not None:
            told += event.text[0]
            assert "=" not in told or len(told) > len("18 - 4 = 14; 14 + 12 = 26")
        elif isinstance(event, RowFinished):
            told += event.text or ""
    assert told == "18 - 4 = 14; 14 + 12 = 26; answer 26"
    pieces = [
        event.text if isinstance(event, RowFinished) else "".join(event.text or ())
        for event in model.stream(QUESTION, sampler=sampler, max_new_tokens=32, stop=["14 + 12", "; a"])
        if isinstance(event, Step | RowFinished)
    ]
    assert "".join(piece or "" for piece in pieces) == "18 - 4 = 14; "


@pytest.mark.parametrize(
    ("name", "sampler"), [("llama", "lookup"), ("dream", "threshold+eos@dual"), ("dream", "sequential")]
)
def test_each_prompt_of_a_service_may_have_its_own(name: str, sampler: str, request: pytest.FixtureRequest) -> None:
    model: pardec.Model = request.getfixturevalue(name)
    items: list[dict[str, Any]] = [
        {"prompt": QUESTION, "stop": ";"},
        {"prompt": OTHER},
        {"prompt": OTHER, "stop": ["- ", "never"], "max_new_tokens": 20},
        {"prompt": QUESTION, "stop": "4 ="},
        {"prompt": QUESTION},
    ]
    shared: dict[str, Any] = {"stop": "answer", "max_new_tokens": 32}
    serving = model.serve_batch(items, batch_size=2, sampler=sampler, **shared)
    served = {row.index: row for row in serving}
    assert serving.waits is None
    assert sorted(served) == list(range(len(items)))
    for index, item in enumerate(items):
        alone = model.generate(sampler=sampler, **{**shared, **item})
        assert alone.text == [served[index].text]
        result = served[index].result
        assert (result.tokens, result.finish, result.nfe) == (alone.tokens, alone.finish, alone.nfe)
        assert result.settings == alone.settings
    assert served[0].text == "18 - 4 = 14"


def test_a_special_token_ends_the_row_by_its_id(llama: pardec.Model) -> None:
    result = llama.generate(QUESTION, stop=["<eos>", "<pad>", ";"], stop_ids=[])
    assert result.stop_ids == (3, 0)
    assert result.settings["stop"] == [";"]
    assert result.text == ["18 - 4 = 14"]


def test_a_saved_result_keeps_what_was_asked(llama: pardec.Model, tmp_path: Any) -> None:
    result = llama.generate(QUESTION, stop=";")
    loaded = pardec.Result.load(result.save(tmp_path / "run"))
    assert (loaded.text, loaded.tokens, loaded.finish) == (["18 - 4 = 14"], result.tokens, ["stop"])
    assert loaded.settings["stop"] == [";"]


@pytest.mark.parametrize("stop", ["", [""], 5, [5], [["a"]]])
def test_what_is_no_text_is_refused(llama: pardec.Model, stop: Any) -> None:
    with pytest.raises(SpecError, match="stop must be a text or a list of texts"):
        llama.generate(QUESTION, stop=stop)


def test_where_there_is_no_text_it_is_refused(dream: pardec.Model) -> None:
    from tests.samplers.toys import toy

    with pytest.raises(SpecError, match="stop is text and toy comes without a tokenizer"):
        pardec.Model(toy()).generate(input_ids=[[1, 2]], stop="a")
    with pytest.raises(SpecError, match="which fixes the length"):
        dream.generate(QUESTION, template="8 - <mask> = <mask>", stop="=")
    with pytest.raises(SpecError, match="stop is for text and tiny-mar draws"):
        pardec.load("tiny-mar", device="cpu").generate(label=3, stop="=")


def test_no_stop_string_is_nothing(llama: pardec.Model) -> None:
    assert torch.equal(llama.generate(OTHER, stop=[]).sequences, llama.generate(OTHER).sequences)
