"""Images with more tokens than codes: ends of rows, closing tokens, and codes scattered among other ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.models.images.contracts import ImageLayout
from pardec.models.images.llamagen import LlamaGenImaging
from pardec.models.model import LanguageModel
from pardec.views.image_view import commit_counts
from pardec.views.unfinished import Codes
from tests.samplers.picture_toys import features, toy_pictures

LAYOUT = ImageLayout(2, 3, row_end=5, closing=(6, 1), ids=torch.tensor([4, 0, 7, 2]))
FORCED = {3: 5, 7: 5, 8: 6, 9: 1}


class Grammatical(LlamaGenImaging):
    """An image interface that decodes a code to its own shade of grey."""

    layout = LAYOUT  # type: ignore[assignment]
    can_decode = True  # type: ignore[assignment]

    def decode(self, codes: Tensor) -> Tensor:
        assert codes.min() >= 0
        return (codes[:, None].float() / 2 - 1).expand(-1, 3, -1, -1)


def toy() -> LanguageModel:
    made = toy_pictures(seed=3, side=4, vocab=8, sharp=2.0)
    own = made.imaging
    assert isinstance(own, LlamaGenImaging)
    return replace(made, imaging=Grammatical(own.embedder, own.side, name="toy"))


def test_a_layout_says_where_codes_stand() -> None:
    assert (LAYOUT.stride, LAYOUT.tokens, LAYOUT.plain) == (4, 10, False)
    assert LAYOUT.forced().tolist() == [-1, -1, -1, 5, -1, -1, -1, 5, 6, 1]
    tokens = torch.tensor([[4, 0, 7, 5, 2, -1, 3, 5, 6, 1]])
    assert LAYOUT.codes(tokens).tolist() == [[[0, 1, 2], [3, -1, -1]]]
    plain = ImageLayout(2, 2)
    assert plain.plain
    assert plain.codes(torch.arange(4)).tolist() == [[0, 1], [2, 3]]
    assert plain.forced().tolist() == [-1] * 4


DRAFTED = ["sequential", "sjd:window=5", "sjd:window=5,init=up", "jacobi", "lookup", "recycling", "zipar:window=3"]


@pytest.mark.parametrize("sampler", DRAFTED)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.covers(1)
def test_every_sampler_keeps_to_it(sampler: str, temperature: float) -> None:
    model = pardec.Model(toy())
    told: list[Any] = []
    result = model.generate(
        prompt_embeds=features([2, 3]), sampler=sampler, temperature=temperature, cfg=2.0, callback=told.append
    )
    for tokens, picture in zip(result.tokens, result.images, strict=True):
        assert len(tokens) == 10
        assert {place: tokens[place] for place in FORCED} == FORCED
        free = [token for place, token in enumerate(tokens) if place not in FORCED]
        assert set(free) <= {4, 0, 7, 2}
        assert picture.size == (3, 2)
    assert commit_counts(result, 0).shape == (2, 3)
    codes = Codes(LAYOUT)
    for event in told:
        codes(event)
    assert codes.codes.tolist() == LAYOUT.codes(torch.tensor(result.tokens)).flatten(1).tolist()
    if temperature == 0:
        plain = model.generate(prompt_embeds=features([2, 3]), sampler="sequential", cfg=2.0)
        assert plain.tokens == result.tokens


def test_sampled_tokens_without_an_alternative_are_no_merit_of_the_drafter() -> None:
    result = pardec.Model(toy()).generate(prompt_embeds=features([2]), sampler="sjd:window=8", temperature=1.0)
    assert result.acceptance_length is not None
    free = 10 - len(FORCED)
    rounds = [count for count in result.trace.gained[0][1:] if count]
    assert sum(rounds) == free - 1  # the first code is the prompt's forward's


def test_constraints_hold_within_it() -> None:
    model = pardec.Model(toy())
    allowed = {0: [4, 5], 3: [5, 2], 4: [7]}
    result = model.generate(prompt_embeds=features([2]), sampler="sjd", temperature=1.0, allowed=allowed)
    assert [result.tokens[0][at] for at in (0, 3, 4)] == [4, 5, 7]
    with pytest.raises(SpecError, match="allowed leaves nothing at index 3 of row 0, where token 5 has to be"):
        model.generate(prompt_embeds=features([2]), allowed={3: [4]})
    with pytest.raises(SpecError, match="leaves nothing at index 1 of row 0, where a code has to be"):
        model.generate(prompt_embeds=features([2]), allowed={1: [5, 6]})
