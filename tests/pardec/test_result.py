"""Results: their counts; saving and loading preserves everything, and saving is atomic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import pardec
from pardec.io.saving import ResultError
from pardec.samplers.trace import Trace
from pardec.views.token_text import TokenTexts


@pytest.fixture(scope="module")
def result(model: pardec.Model) -> pardec.Result:
    return model.generate(["Tom has 3 cups.", "Ann"], max_new_tokens=10, sampler="threshold:tau=0.3@dual", seed=3)


@pytest.mark.parametrize("name", ["run", "run.json", "deep/er/run.v1"])
def test_what_is_loaded_is_what_was_saved(result: pardec.Result, tmp_path: Path, name: str) -> None:
    loaded = pardec.Result.load(result.save(tmp_path / name))
    assert torch.equal(loaded.sequences, result.sequences)
    assert loaded.sequences.dtype == torch.int64
    assert np.array_equal(loaded.trace.commit_step, result.trace.commit_step)
    assert np.array_equal(loaded.trace.commit_score, result.trace.commit_score)
    assert loaded.trace.commit_step.dtype == np.int32
    assert loaded.trace.steps == result.trace.steps
    plain = (
        "tokens", "text", "generated", "nfe", "forward_rows", "tokens_fed", "spec", "exact", "timing", "finish",
        "prompts",
    )  # fmt: skip
    for field in (*plain, "stop_ids", "seeds", "model", "settings", "environment", "pieces"):
        assert getattr(loaded, field) == getattr(result, field), field
    assert loaded.rows() == result.rows()
    again = pardec.Result.load(loaded.save(tmp_path / "again"))
    assert again.pieces == result.pieces


@pytest.mark.parametrize("name", ["run", "run.json"])
def test_a_loaded_bias_has_the_ids_that_were_given(model: pardec.Model, tmp_path: Path, name: str) -> None:
    result = model.generate("Ann", max_new_tokens=2, logit_bias={7: -100, 21: 3.5})
    loaded = pardec.Result.load(result.save(tmp_path / name))
    assert loaded.settings == result.settings
    assert model.generate("Ann", max_new_tokens=2, logit_bias=loaded.settings["logit_bias"]).tokens == result.tokens


def test_saving_again_replaces_a_result_and_nothing_else(result: pardec.Result, tmp_path: Path) -> None:
    for name in ("run", "run.json"):
        result.save(tmp_path / name)
        result.save(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.json"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ResultError, match="is not a saved result"):
        result.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_a_failed_save_leaves_nothing(result: pardec.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pardec.io.saving.save_file", full)
    monkeypatch.setattr("pardec.io.saving.os.replace", full)
    for name in ("run", "run.json"):
        with pytest.raises(ResultError, match="No space left"):
            result.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def damage(folder: Path, **changes: Any) -> None:
    held = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({k: v for k, v in (held | changes).items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other/1"}, "not a saved result of this version"),
        ({"nfe": None}, "'nfe' is missing"),
        ({"nfe": [1]}, "nfe has 1 rows, expected 2"),
        ({"timing": 3}, "damaged"),
        ({"fed": [[], [7]]}, "damaged"),
        ({"clocks": [[0], []]}, "different numbers of forwards"),
    ],
)
def test_a_damaged_result_is_refused(result: pardec.Result, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    result.save(tmp_path / "run")
    damage(tmp_path / "run", **changes)
    with pytest.raises(ResultError, match=said) as caught:
        pardec.Result.load(tmp_path / "run")
    assert caught.value.hint


def test_missing_torn_and_foreign_files_are_refused(result: pardec.Result, tmp_path: Path) -> None:
    for name in ("run", "gone"):
        result.save(tmp_path / name)
    tensors = (tmp_path / "run" / "tensors.safetensors").read_bytes()
    (tmp_path / "run" / "tensors.safetensors").write_bytes(tensors[:-5])
    (tmp_path / "gone" / "tensors.safetensors").unlink()
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    for name in ("run", "gone", "text.json", "list.json", "nowhere"):
        with pytest.raises(ResultError):
            pardec.Result.load(tmp_path / name)


def test_rates_are_made_of_the_counts(result: pardec.Result) -> None:
    assert result.tokens_per_forward == sum(result.generated) / sum(result.nfe)
    assert result.timing.tokens == sum(result.generated)
    assert result.timing.tokens_per_second == pytest.approx(result.timing.tokens / result.timing.total_s)
    assert "tokens per forward" in repr(result)


def test_the_trace_replays_to_the_sequences(result: pardec.Result, model: pardec.Model) -> None:
    for row, start in enumerate(result.prompts):
        canvas = result.sequences[row].tolist()
        end = int(result.trace.lengths[row])
        replayed = canvas[:start] + [model.language_model.decoding_config.pad_id] * (end - start)
        for step in result.trace.steps[row]:
            for position, token in zip(step.positions, step.tokens, strict=True):
                replayed[position] = token
        assert replayed == canvas[:end]
        assert len(result.trace.steps[row]) == result.nfe[row]


def test_the_trace_says_when_each_position_came(model: pardec.Model, tmp_path: Path) -> None:
    made = model.generate(
        ["Tom has 3 cups.", "Ann"], max_new_tokens=4, block_length=4, sampler="origin:steps=9", seed=5, stop_ids=[]
    )
    for result in (made, pardec.Result.load(made.save(tmp_path / "run"))):
        trace = result.trace
        assert trace.commit_step.dtype.itemsize + trace.commit_score.dtype.itemsize == 8
        assert any(list(clocks) != list(range(len(clocks))) for clocks in trace.clocks)  # a schedule that skipped
        for row, start in enumerate(result.prompts):
            for position in range(int(trace.lengths[row])):
                found = trace.at(row, position)
                assert found.token == result.sequences[row, position]
                assert (found.forward, found.clock) == (trace.forward[row, position], trace.clock[row, position])
                if position < start:
                    assert (found.forward, found.clock) == (-1, -1)
                else:
                    step = trace.steps[row][found.forward]
                    assert position in step.positions
                    assert found.clock == step.clock == trace.clocks[row][found.forward]
                    assert found.score == pytest.approx(step.scores[step.positions.index(position)])
        with pytest.raises(IndexError, match="positions 0"):
            trace.at(1, int(trace.lengths[1]))
        assert (trace.clock[1, trace.lengths[1] :] < 0).all()
    bare = Trace(
        np.array([[7, 8]]), np.array([[0, 1]], dtype=np.int32), np.ones((1, 2)), np.array([2]), (((0,), (1,)),)
    )
    assert bare.clock.tolist() == [[0, 1]]
    assert [step.clock for step in bare.steps[0]] == [0, 1]


def test_pieces_join_to_the_text(model: pardec.Model) -> None:
    text = "Tom has 12 cups; he buys 4."
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(TokenTexts(model.tokenizer)(ids)).strip() == text
    assert TokenTexts(None)([7, 12]) == [" 7", " 12"]


def test_pieces_keep_the_blanks_of_an_indented_line() -> None:
    names = ["▁def", "<0x0A>", "▁▁▁", "▁", "▁return", "▁▁x", "f"]
    words = Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, "f"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    words.decoder = decoders.Sequence(steps)  # Llama 2's, which takes one blank off the beginning of a text
    pieces = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=words))(range(len(names)))
    assert pieces == [" def", "\n", "   ", " ", " return", "  x", "f"]


def test_results_are_data_frames_where_pandas_is() -> None:
    pytest.importorskip("pandas")
    result = pardec.load("tiny-dream", device="cpu").generate(["Tom has 3 cups.", "Ann."], max_new_tokens=2)
    frame = result.to_pandas()
    assert frame.to_dict("records") == result.rows()


def test_a_data_frame_of_tokens_has_a_line_for_each_with_its_commit() -> None:
    pytest.importorskip("pandas")
    model = pardec.load("tiny-dream", device="cpu")
    result = model.generate(["Tom has 3 cups.", "Ann."], max_new_tokens=5, sampler="fixed:steps=3", logprobs=0)
    frame = result.to_pandas(tokens=True)
    assert list(frame.columns) == ["row", "position", "id", "token", "step", "score", "logprob"]
    for row, ids in enumerate(result.tokens):
        own = frame[frame["row"] == row]
        assert own["id"].tolist() == ids
        assert own["position"].tolist() == list(range(len(ids)))
        assert own["step"].tolist() == result.step_map[row].tolist()
        assert own["logprob"].tolist() == pytest.approx(result.token_logprobs[row].tolist())  # type: ignore[index]
        committed = {
            at: score for step in result.trace.steps[row] for at, score in zip(step.positions, step.scores, strict=True)
        }
        start = result.prompts[row]
        assert own["score"].tolist() == pytest.approx([committed[start + at] for at in range(len(ids))])
        assert "".join(own["token"]).startswith((result.text or [])[row].rstrip("."))
    assert "logprob" not in model.generate("Tom", max_new_tokens=2).to_pandas(tokens=True)


def test_a_result_of_many_forwards_is_read_back(result: pardec.Result, tmp_path: Path) -> None:
    """Forward numbers need more than sixteen bits; the first row's last token is from forward 39,999."""
    trace = result.trace
    more = 40_000 - len(trace.fed[0])
    steps = trace.commit_step.copy()
    steps[0, int(trace.lengths[0]) - 1] = 39_999
    last = trace.fed[0][-1]
    fed = ((*trace.fed[0], *[last] * more), *trace.fed[1:])
    clocks = ((*trace.clocks[0], *[trace.clocks[0][-1]] * more), *trace.clocks[1:])
    long = replace(result, trace=replace(trace, commit_step=steps, fed=fed, clocks=clocks))
    for name in ("long", "long.json"):
        assert np.array_equal(pardec.Result.load(long.save(tmp_path / name)).trace.commit_step, steps)
