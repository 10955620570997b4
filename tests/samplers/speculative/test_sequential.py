"""`sequential`: one token per forward, equal to whole forwards without a loop."""

from __future__ import annotations

import numpy as np

from pardec.samplers.registry import resolve
from tests.samplers.ar_toys import g_test, logits, plain_greedy, prompts, rows, run, toy_ar

GIVEN, NEW = prompts((3, 6, 1, 9), vocab=8), (6, 4, 9, 5)


def test_each_token_is_the_likeliest_after_a_whole_forward() -> None:
    model = toy_ar(3, 8, 1.5)
    done = run(model, "sequential", GIVEN, NEW)
    assert rows(done) == [plain_greedy(model, prompt, new) for prompt, new in zip(GIVEN, NEW, strict=True)]
    assert done.nfe == NEW
    assert all(drafted == 0 for row in done.trace.drafted for drafted in row)


def test_the_first_draw_has_the_distribution_of_the_forward() -> None:
    model, count = toy_ar(3, 8, 1.5), 2000
    drawn = run(model, "sequential", [GIVEN[0]] * count, 1, temperature=1.0).tokens[:, len(GIVEN[0])]
    law = logits(model, [GIVEN[0]])[0, -1].double().softmax(-1).numpy()
    assert g_test(np.bincount(drawn, minlength=8)[None], law[None]) < 4


def test_it_is_exact_and_what_a_spec_without_a_drafter_has() -> None:
    assert resolve("sequential", "ar").exact == "greedy"
    assert resolve(None, "ar").spec == resolve("sequential", "ar").spec
