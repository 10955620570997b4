"""States of texts on disk, and the measurement that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pardec
from pardec.models.errors import ModelError
from pardec.models.files.catalog import EMBEDDED
from pardec.models.plan import Plan, Visible
from pardec.training.run import measure
from pardec.training.states import Batch, States, Text, open_states

ROWS = [([2, 50, 60], [70, 80, 90, 3]), ([2, 51], [71, 81, 3])]


def test_states_are_those_of_a_forward_over_the_text(model: pardec.Model, tmp_path: Path) -> None:
    states = States(tmp_path, (0, 2), model.network)
    assert states.write(ROWS) == 12
    batch = states.batch(states.texts)
    assert batch.lengths.tolist() == [7, 5] or batch.lengths.tolist() == [5, 7]
    row = batch.lengths.tolist().index(5)
    plan = Plan.full(torch.tensor([[2, 51, 71, 81, 3]]), Visible.causal())
    hidden = model.network.forward(plan)
    torch.testing.assert_close(batch.normed[row, :5].float(), hidden.normed()[0], rtol=2**-8, atol=1e-5)  # bfloat16's
    assert torch.equal(batch.best[row, :5], hidden.logits()[0].argmax(-1))
    assert states.counts(361)[[2, 3, 50, 70]].tolist() == [0, 2, 0, 1], "of the answers alone"


def test_what_is_computed_online_is_what_is_stored(model: pardec.Model, tmp_path: Path) -> None:
    stored, online = (open_states(tmp_path, (0, 2), model.network, online=online) for online in (False, True))
    assert stored.update({"a": ROWS}, 100) == online.update({"a": ROWS}, 100) == 12
    assert {path.name for path in online.folder.iterdir()} == {"about.json", "files.json", "ids.bin", "index.jsonl"}
    assert stored.texts == online.texts
    assert torch.equal(stored.counts(361), online.counts(361))
    for text in stored.texts:  # alone: in a batch the padding holds states as well
        for name, value in vars(stored.batch([text])).items():
            torch.testing.assert_close(getattr(online.batch([text]), name), value, rtol=2**-8, atol=1e-5)
        assert stored.greedy(text) == online.greedy(text)
    batch = online.batch(online.texts)
    assert torch.equal(batch.ids, stored.batch(stored.texts).ids)
    assert not batch.taps.is_inference()


def test_only_what_is_new_is_added_and_what_was_cut_off_is_cut_away(model: pardec.Model, tmp_path: Path) -> None:
    states = States(tmp_path, (0,), model.network)
    assert states.update({"a": ROWS[:1]}, 100) == 7
    assert states.update({"a": ROWS}, 100) == 5
    assert states.update({"a": ROWS}, 100) == 0
    with (tmp_path / "ids.bin").open("ab") as file:
        file.write(b"1234")
    again = States(tmp_path, (0,), model.network)
    assert (again.tokens, (tmp_path / "ids.bin").stat().st_size) == (12, 48)
    with pytest.raises(ModelError, match="layers"):
        States(tmp_path, (1,), model.network)


def test_states_of_another_target_of_the_same_shape_are_refused(model: pardec.Model, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (EMBEDDED / "tiny-llama").iterdir():
        if file.suffix == ".json":
            (copy / file.name).write_bytes(file.read_bytes())
    weights = load_file(EMBEDDED / "tiny-llama" / "model.safetensors")
    save_file({name: value * 1.01 for name, value in weights.items()}, copy / "model.safetensors")
    States(tmp_path / "states", (0,), model.network)
    with pytest.raises(ModelError, match="target"):
        States(tmp_path / "states", (0,), pardec.load(copy, device="cpu").network)
    about = tmp_path / "states" / "about.json"
    about.write_text(json.dumps({"layers": [0], "width": model.network.width}))  # as versions before wrote it
    States(tmp_path / "states", (0,), model.network)


@pytest.mark.parametrize(("longest", "more"), [(100, 0), (100, 1), (6, 0)])
def test_what_was_cut_off_goes_on_and_no_text_is_there_twice(
    longest: int, more: int, model: pardec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call resumes; one with more texts or another length continues after the completed texts."""
    rows = [([2, 50 + n], [70 + at for at in range(2 + n % 5)] + [3]) for n in range(9)]
    monkeypatch.setattr("pardec.training.states._TOKENS", 16)
    whole = States(tmp_path / "whole", (0,), model.network)
    whole.update({"a": rows[:2]}, 100)
    whole.update({"a": rows[: 8 + more]}, longest)
    states = States(tmp_path / "cut", (0,), model.network)
    states.update({"a": rows[:2]}, 100)
    forward, calls = States._forward, []

    def breaks(self: States, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(States, "_forward", breaks)
        with pytest.raises(KeyboardInterrupt):
            states.update({"a": rows[:8]}, 100)
    again = States(tmp_path / "cut", (0,), model.network)
    assert 2 < len(again.texts) < 8
    again.update({"a": rows[: 8 + more]}, longest)
    assert again.texts == whole.texts
    for name in ("ids", "best", "states"):
        assert (tmp_path / "cut" / f"{name}.bin").read_bytes() == (tmp_path / "whole" / f"{name}.bin").read_bytes()
    assert again.update({"a": rows[: 8 + more]}, longest) == 0


def test_a_file_is_known_by_what_it_begins_with(model: pardec.Model, tmp_path: Path) -> None:
    """Files are identified by their first text, not by a name that another file may have."""
    states = States(tmp_path, (0,), model.network)
    assert states.update({"one/own.jsonl": ROWS[:1], "two/own.jsonl": ROWS[1:]}, 100) == 12
    assert states.update({"elsewhere.jsonl": ROWS[:1], "empty.jsonl": []}, 100) == 0
    other = ([2, 60], [61, 3])
    assert states.update({"one/own.jsonl": [other]}, 100) == 4
    with pytest.raises(ModelError, match=r"a\.jsonl and b\.jsonl begin with the same text"):
        states.update({"a.jsonl": ROWS, "b.jsonl": ROWS}, 100)


class _Knows:
    """A drafter that predicts the text itself, except for wrong tokens at the positions in `wrong`."""

    def __init__(self, wrong: set[int]) -> None:
        self.wrong = wrong

    def chain(self, batch: Batch, length: int) -> Tensor:
        drafts = torch.full((*batch.ids.shape, length), -1)
        for at in range(batch.width):
            for j in range(length):
                if at + 2 + j < batch.width and at + 2 + j not in self.wrong:
                    drafts[:, at, j] = batch.ids[:, at + 2 + j]
        return drafts


@pytest.mark.parametrize(
    ("wrong", "tokens", "rounds"),
    [
        (set(), 8, 3),  # rounds of 3, 3 and 2 tokens: the first of the answer is known, 8 follow it
        (set(range(3, 11)), 8, 8),
        ({3}, 8, 4),  # 3 alone, which is the target's; 4 to 6, 7 to 9, 10
        ({5}, 8, 3),  # 3 to 5, whose last is the target's; 6 to 8, 9 and 10
    ],
)
def test_a_walk_counts_tokens_and_rounds(wrong: set[int], tokens: int, rounds: int, tmp_path: Path) -> None:
    class Memory(States):
        def __init__(self) -> None:
            pass

        def batch(self, texts: Any) -> Batch:
            ids = torch.arange(100, 111)[None]
            none = torch.zeros(1, 11, 1, 4)
            return Batch(ids, none, none[:, :, 0], ids, torch.tensor([2]), torch.tensor([11]))

    result = measure(_Knows(wrong), Memory(), [Text(0, 2, 11)], 2)  # type: ignore[arg-type]
    assert result.rounds == rounds
    assert result.length == pytest.approx(tokens / rounds)
