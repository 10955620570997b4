"""`lminfinite`: as `streaming`, with the first tokens at a distance that no longer grows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from tests.reference.naive_window import naive
from tests.samplers.ar_toys import prompts, rows, run, toy_ar

VOCAB = 8
GIVEN, NEW = prompts((3, 6, 1, 9, 40), vocab=VOCAB), (20, 12, 30, 25, 20)


def target(dtype: torch.dtype = torch.float32) -> LanguageModel:
    return toy_ar(3, VOCAB, 1.5, layers=3, dtype=dtype)


@pytest.mark.parametrize("drafter", ["lookup:k=3", "layerskip:k=3+template:widths=2-2-1"])
def test_every_drafter_gives_what_sequential_gives_through_the_same_window(drafter: str) -> None:
    """Each query sees its own window, whatever else is fed: the plain version says what that gives."""
    model, cache = target(torch.float64), "lminfinite:sink=2,window=6"
    done = run(model, f"{drafter}@{cache}", GIVEN, NEW)
    assert rows(done) == rows(run(model, f"sequential@{cache}", GIVEN, NEW))
    text = rows(done)[1]
    truth = naive(model.decoder, text, 2, 6, "offsets")
    assert truth[len(GIVEN[1]) - 1 : -1].argmax(-1).tolist() == text[len(GIVEN[1]) :]


@pytest.mark.seeds("arXiv:2308.16137")
def test_at_capped_distances_a_long_text_is_read_as_a_short_one(tmp_path: Any) -> None:
    """How far the sinks lie does not matter any more, where sinks that keep their distance do change what is said."""
    model = toy_ar(6, VOCAB, layers=2, dtype=torch.float64)
    beginning, ending = prompts((4, 13), vocab=VOCAB, seed=1)
    texts = [[*beginning, *middle, *ending] for middle in prompts((9, 40, 400), vocab=VOCAB, seed=2)]
    made: dict[str, list[Tensor]] = {"lminfinite:sink=4,window=6": [], "streaming:sink=4,window=6": []}
    for spec, each in made.items():
        stage = registry.resolve(f"sequential@{spec}", "ar").cache
        assert stage is not None
        for text in texts:
            cache = stage.new_cache(model, 1, len(text))
            each.append(model.decoder(Plan.full(torch.tensor([text]), Visible.causal()), cache).logits()[0, -1])
    capped, others = made.values()
    for one, other in zip(capped[1:], others[1:], strict=True):
        torch.testing.assert_close(one, capped[0], rtol=0, atol=1e-5)
        assert (other - others[0]).abs().max() > 0.05
    short = [*texts[0], *ending]
    assert len(short) == 39
    plain, read = (run(model, spec, [short], 20) for spec in ("sequential", "sequential@lminfinite:window=60"))
    assert rows(read) == rows(plain)
