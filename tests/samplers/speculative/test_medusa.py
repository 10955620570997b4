"""`medusa`: every head reads the target's last state only; common tests are in test_heads_contract.py."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept.typical import Typical
from tests.grids import chequered
from tests.reference import head_folders
from tests.samplers.ar_toys import rows, toy_ar
from tests.samplers.head_drafts import (
    NEW,
    PROMPTS,
    SHAPES,
    as_of_whole_texts,
    module,
    run,
    spec_of,
    target,
)
from tests.samplers.heldout_answers import answered
from tests.samplers.joint_distributions import WORLDS, measure, small
from tests.samplers.speculative import test_typical as typical


def counted(text: list[int], prompt: int, k: int) -> tuple[int, int]:
    """Rounds and accepted tokens if every draft is k times the last token, in a row with known tokens."""
    at, rounds, accepted = prompt + 1, 1, 0  # the first round feeds the prompt
    while at < len(text):
        room = min(k, len(text) - at - 1)
        good = 0
        while good < room and text[at + good] == text[at - 1]:
            good += 1
        at, rounds, accepted = at + good + 1, rounds + 1, accepted + good
    return rounds, accepted


def test_untrained_heads_repeat_the_last_token(tmp_path: Path) -> None:
    """An untrained head predicts what the target predicted last, the token just committed: counts are exact."""
    model = toy_ar(7, 4, 2.0)
    head = model.decoder.head.weight  # type: ignore[attr-defined]
    tensors = head_folders.untrained(head.detach(), 4)
    own = load_draft_module(
        head_folders.write(tmp_path, tensors, head_folders.CONFIGS["v0.1"], "medusa_lm_head.pt"), model
    )
    prompts = [[at % 4, at // 4 % 4, at // 16] for at in range(64)]
    done = run(model, "medusa:name=own,k=4", prompts, 30, draft_model=own)
    assert rows(done) == rows(run(model, "sequential", prompts, 30))
    expected = [counted(row, 3, 4) for row in rows(done)]
    assert list(done.nfe) == [rounds for rounds, _ in expected]
    assert [sum(row) for row in done.trace.accepted] == [accepted for _, accepted in expected]
    assert len({rounds for rounds, _ in expected}) > 3  # rows repeat themselves, some more than others
    assert min(done.nfe) < 20


def test_a_matrix_that_heads_share_is_multiplied_once_a_round(tmp_path: Path) -> None:
    own: Any = module("shared", target(), tmp_path)
    assert own.shared
    with patch.object(type(own), "logits", autospec=True, side_effect=type(own).logits) as logits:
        done = run(target(), "medusa:name=own,k=3", PROMPTS[:1], 12, draft_model=own)
    drafted = [count for count in done.trace.drafted[0] if count]
    assert [call.args[2] for call in logits.call_args_list] == [range(min(3, count)) for count in drafted]


@pytest.mark.parametrize("variant", ["medusa", "shared"])
def test_its_heads_read_no_path_and_count_no_forward(variant: str, tmp_path: Path) -> None:
    own = module(variant, target(), tmp_path)
    done = run(target(), spec_of(own), PROMPTS, NEW, draft_model=own)
    assert min(max(row) for row in done.trace.drafted) > 0
    assert sum(done.draft_forwards) == 0


@pytest.mark.parametrize(("shape", "temperature"), chequered(SHAPES, [0.0, 1.0]))
@pytest.mark.covers(1)
def test_every_head_says_what_it_says_of_the_whole_text(shape: str, temperature: float, tmp_path: Path) -> None:
    as_of_whole_texts("medusa", shape, temperature, tmp_path)


@pytest.mark.parametrize("accept", ["speculative", "match"])
def test_the_likeliest_tokens_at_a_temperature_keep_the_distribution(accept: str) -> None:
    for reading in measure(f"{small('medusa')}+{small('paths')},top=true+{accept}", WORLDS["3 tokens, length 6"], 4000):
        assert reading.z < 4, reading


def test_it_has_to_be_named() -> None:
    with pytest.raises(SpecError, match="medusa: name is missing"):
        registry.resolve("medusa", "ar")


@pytest.mark.seeds("arXiv:2401.10774")
def test_trained_heads_keep_greedy_text_and_typical_acceptance_takes_the_likeliest_and_more_under_entropy(
    tmp_path: Path,
) -> None:
    as_of_whole_texts("medusa", "chain", 0.0, tmp_path, rows=2)
    typical.test_the_threshold_by_hand()
    typical.test_a_token_at_the_bar_is_not_accepted()
    typical.test_the_longest_path_stands_and_ties_go_to_the_likelier()
    typical.test_random_trees_follow_the_naive_rule(False)
    _, plain = answered("tiny-llama", "arithmetic", "sequential", 8)
    _, done = answered("tiny-llama", "arithmetic", "medusa:name=tiny-llama-medusa", 8)
    assert done.tokens == plain.tokens
    assert sum(done.nfe) < 0.8 * sum(plain.nfe)
    drawn = np.random.RandomState(0)
    p = torch.from_numpy(np.concatenate([drawn.dirichlet([a] * 12, 50) for a in (0.05, 0.3, 1.0, 5.0, 50.0)]))
    bar = Typical(epsilon=0.3).threshold(p[:, None])[:, 0]
    assert (p.amax(-1) >= bar).all()
    scaled = [(p.log() / t).softmax(-1) for t in (0.5, 1.0, 2.0, 8.0)]  # ever more entropy
    sizes = [(each > Typical(epsilon=0.3).threshold(each[:, None])[:, 0, None]).sum(-1) for each in scaled]
    assert all((more >= less).double().mean() > 0.98 for less, more in pairwise(sizes))
    assert sizes[-1].sum() > 1.5 * sizes[0].sum()
