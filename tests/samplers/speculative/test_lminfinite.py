"""`lminfinite`: like `streaming`, with a capped distance to the first tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from tests.models import test_window_cache as windows
from tests.reference.naive_window import naive
from tests.samplers.ar_toys import prompts, rows, run, toy_ar
from tests.samplers.reading_drafts import VOCAB, same_window_for_every_drafter

test_every_drafter_gives_what_sequential_gives_through_the_same_window = same_window_for_every_drafter(
    "lminfinite", "offsets"
)


@pytest.mark.seeds("arXiv:2308.16137")
def test_at_capped_distances_a_long_text_is_read_as_a_short_one(tmp_path: Any) -> None:
    """The position of the sinks has no effect, while with uncapped distances it has."""
    windows.test_a_prompt_and_what_follows_are_those_of_the_plain_version("offsets")
    windows.test_a_prompt_and_what_follows_are_those_of_the_plain_version("zero")  # reference=true
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
            far = "offsets" if "lminfinite" in spec else None
            if len(text) < 100:
                torch.testing.assert_close(
                    each[-1].double(), naive(model.decoder, text, 4, 6, far)[-1], rtol=0, atol=1e-4
                )
    capped, others = made.values()
    for one, other in zip(capped[1:], others[1:], strict=True):
        torch.testing.assert_close(one, capped[0], rtol=0, atol=1e-5)
        assert (other - others[0]).abs().max() > 0.05
    stage = registry.resolve("sequential@lminfinite:window=6", "ar").cache
    assert stage is not None
    cache = stage.new_cache(model, 1, len(texts[0]))
    ten = model.decoder(Plan.full(torch.tensor([texts[0]]), Visible.causal()), cache).logits()[0, -1]
    expected = naive(model.decoder, texts[0], 10, 6, "offsets")[-1]  # the published number of sinks
    torch.testing.assert_close(ten.double(), expected, rtol=0, atol=1e-4)
    short = [*texts[0], *ending]
    assert len(short) == 39
    plain, read = (run(model, spec, [short], 20) for spec in ("sequential", "sequential@lminfinite:window=60"))
    assert rows(read) == rows(plain)
