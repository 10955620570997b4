"""The filter trainer on tiny data: traces become examples, and a rule in them is learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from train_filter import BLOCK, Examples, Recorder, judged, train

from pardec.samplers import registry
from pardec.samplers.masked.loop import decode
from tests.samplers.eight_tokens import LAWS, MASK, SURE, TOKENS
from tests.samplers.toys import request, table


def test_every_step_of_a_trace_is_an_example() -> None:
    """Two of eight are given, one is marked as never committed, and one as committed with another token."""
    row = [MASK, MASK, MASK, 0, 0, MASK, MASK, MASK]
    recorder = Recorder()
    sampler = replace(registry.resolve("threshold:tau=0.9"), logits=(recorder,))
    *_, last = decode(table(LAWS), sampler, request([row], [0], block_length=8))
    ended = torch.tensor([[*TOKENS[:7], 3]])
    ended[0, 1] = -1  # never committed there
    found = recorder.examples(ended)
    assert len(found) == last.nfe[0] == 4  # .95 .91 .901; .85; .60; .45
    assert found.confidences[0].tolist() == pytest.approx([*SURE[:3], 1, 1, *SURE[5:]], abs=1e-6)
    assert found.confidences[1].tolist() == pytest.approx([1, 0.60, 1, 1, 1, 0.85, 1, 0.45], abs=1e-6)
    known = [[place not in (1, 3, 4) for place in range(8)], [place in (5, 7) for place in range(8)]]
    assert found.open[:2].tolist() == known
    assert found.final[0].tolist() == [place in (0, 2, 5, 6) for place in range(8)]
    assert found.open[3].tolist() == [place == 7 for place in range(8)]
    assert not found.final[3].any()


def test_a_filter_learns_from_the_whole_block_and_is_the_same_for_a_seed() -> None:
    """A position is final if the position before it is confident; the first one is always final."""
    render = torch.Generator().manual_seed(0)
    confidences = torch.rand(400, BLOCK, generator=render)
    final = torch.cat([torch.ones(400, 1, dtype=torch.bool), confidences[:, :-1] > 0.5], 1)
    examples = Examples(confidences, torch.rand(400, BLOCK, generator=render) < 0.8, final)
    settings = {"hidden": 48, "steps": 400, "batch": 128, "rate": 1e-2, "seed": 1}
    made, again = train((examples,), **settings), train((examples,), **settings)
    assert all(torch.equal(one, other) for one, other in zip(made.parameters(), again.parameters(), strict=True))
    found = judged(made, examples, 0.5)
    assert found["precision"] > 0.9
    assert found["recall"] > 0.9
    assert 0.5 < found["share_final"] < 0.56
