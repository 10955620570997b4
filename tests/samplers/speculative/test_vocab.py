"""The drafter `model` with a trimmed head: exact although it cannot draft all ids, and it drafts no other ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import pardec
from pardec.models.load import load
from pardec.models.trimmed import bytes_read, frequent_ids, trimmed
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.request import Allowed
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.forward import VerifyForward
from tests.models import test_trimmed as heads
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, named, near, target
from tests.samplers.joint_distributions import WORLDS, measure

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")


@pytest.fixture
def ids(tmp_path: Path) -> str:
    file = tmp_path / "ids.json"
    file.write_text("[0, 2, 3]")
    return str(file)


@contextmanager
def drafts() -> Iterator[list[int]]:
    """Every drafted token that could be accepted."""
    verify, tokens = VerifyForward.verify, list[int]()

    def watched(self: VerifyForward, draft: Draft) -> Any:
        tokens.extend(draft.tokens[draft.tested].tolist())
        assert draft.q is None or draft.q.isfinite().all()
        return verify(self, draft)

    with patch.object(VerifyForward, "verify", watched):
        yield tokens


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.covers(1)
def test_nothing_off_the_list_is_drafted_and_greedy_decoding_is_kept(shape: str, temperature: float, ids: str) -> None:
    with named(near=near()), drafts() as tokens:
        done = run(target(), f"model:name=near,k=3,vocab={ids}+{shape}", RAGGED, NEW, temperature=temperature)
    assert set(tokens) <= {0, 2, 3}
    assert len(set(tokens)) == 3
    assert sum(map(sum, done.trace.accepted)) > 0
    if not temperature:
        assert rows(done) == greedy()


@pytest.mark.parametrize("rest", ["speculative", "match", "template:widths=3-2-1+rrs", "template:widths=3-2-1+kseq"])
def test_draws_have_the_joint_distribution_of_the_target(rest: str, ids: str) -> None:
    world = WORLDS[
        "5 tokens, top 3, temperature 0.9" if rest in ("match", "template:widths=3-2-1+kseq") else "5 tokens, length 4"
    ]
    for reading in measure(f"model:name=draft,k=3,vocab={ids}+{rest}", world, 3000):
        assert reading.z < 4
        assert reading.distance < reading.noise + 4 * reading.spread


@pytest.mark.parametrize(
    "rest", [*(f"{shape}+speculative" for shape in SHAPES), f"{SHAPES[1]}+rrs", f"{SHAPES[1]}+kseq"]
)
def test_where_only_other_tokens_are_allowed_the_distribution_is_kept(rest: str, ids: str) -> None:
    """At every second position none of the allowed ids is in the list."""
    sets = torch.ones(2, 5, dtype=torch.bool)
    sets[1] = torch.tensor([False, True, False, False, True])
    at = torch.tensor([0, 0, 1, 0, 1, 0])
    count = 800
    allowed = Allowed(sets, (at,) * count)
    with named(near=near()), drafts() as tokens:
        spec = f"model:name=near,k=3,vocab={ids}+{rest}"
        done = run(target(), spec, [[1]] * count, 5, temperature=1.0, allowed=allowed)
        plain = run(
            target(), "sequential", [[1]] * count, 5, temperature=1.0, allowed=allowed, seeds=range(9000, 9000 + count)
        )
    for column in range(1, 6):
        mine, other = (np.bincount(result.tokens[:, column], minlength=5) / count for result in (done, plain))
        assert np.abs(mine - other).max() < 5 * np.sqrt(0.5 / count)
    assert set(done.tokens[:, 2].tolist()) <= {1, 4}
    assert set(tokens) > {0, 2, 3}


@pytest.mark.seeds("arXiv:2506.22694")
def test_a_quarter_of_the_rows_drafts_nearly_as_well(tmp_path: Path) -> None:
    """tiny-llama's drafter with the ids that are commonest in the target's own texts on other problems."""
    heads.test_the_ids_that_are_left_have_the_logits_of_the_whole_head_and_no_others_have_any()
    heads.test_ids_that_cannot_be_are_refused([3, 4, 3], "listed twice: 3")
    heads.test_only_the_rows_that_are_left_are_multiplied()
    heads.test_a_table_that_is_the_head_too_is_read_whole()
    heads.test_the_commonest_ids_of_texts()
    heads.test_lists_in_files_and_the_first_ids_of_the_one_beside_a_checkpoint(tmp_path)
    model = pardec.load("tiny-llama", dtype="float32", device="cpu")
    task = pardec.task("arithmetic")
    texts = model.generate([p.prompt for p in task.problems(split="train", n=30, seed=3)], max_new_tokens=64).tokens
    vocab = model.language_model.vocab_size
    ends = model.language_model.decoding_config.eos_ids
    listed = frequent_ids(texts, always=ends, most=vocab // 4)
    (tmp_path / "ids.json").write_text(str(listed))
    given = [problem.prompt for problem in task.problems(split="heldout", n=16, seed=7)]

    def measured(spec: str) -> tuple[float, float]:
        """Acceptance length, and the share of tested tokens that were accepted."""
        result = model.generate(given, sampler=spec, max_new_tokens=64)
        assert result.tokens == plain.tokens
        rounds = [taken for row in result.trace.accepted for taken in row[1:]]
        drafted = [count for row in result.trace.drafted for count in row[1:]]
        rejected = sum(taken < count for taken, count in zip(rounds, drafted, strict=True))
        return sum(rounds) / len(rounds) + 1, sum(rounds) / (sum(rounds) + rejected)

    plain = model.generate(given, sampler="sequential", max_new_tokens=64)
    file = tmp_path / "ids.json"
    whole, cut = (measured(f"model:name=tiny-llama-draft,k=5{more}") for more in ("", f",vocab={file}"))
    assert len(listed) <= vocab // 4
    assert cut[0] > 0.95 * whole[0]
    assert cut[1] > whole[1] - 0.05
    drafter = load("tiny-llama-draft", device="cpu", dtype=torch.float32)
    less = trimmed(drafter, listed)
    rows_cut = (vocab - len(listed)) * drafter.width
    assert bytes_read(drafter) - bytes_read(less) == 4 * rows_cut
    assert f"{bytes_read(less):,} bytes read per step instead of {bytes_read(drafter):,}" in less.describe()


def test_a_smaller_head_costs_less(ids: str) -> None:
    with named(near=near()):
        ratio = {}
        for more in ("", f",vocab={ids}"):
            sampler = registry.resolve(f"model:name=near{more}", "ar")
            ratio[more] = sampler.draft.cost_ratio(target(), draft_models.for_text(sampler, target()))
    assert ratio[f",vocab={ids}"] == pytest.approx(1 - 2 * 16 / target().parameters)
