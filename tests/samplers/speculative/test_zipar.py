"""`zipar`: rows of an image in parallel, each a few cells behind the row above it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from tests.samplers.picture_toys import CAPTIONS, GUIDED, PLACES, SIDE, codes, draw, target


def naive(caption: torch.Tensor, lag: int) -> tuple[np.ndarray, int]:
    """Row-parallel greedy decoding; each cell comes from a forward over the known cells, in order."""
    imaging: Any = target().imaging
    weight = imaging.embedder.uncond_embedding
    halves = [imaging.embedder(each) for each in (caption, weight[PLACES - len(caption) :])]

    def distribution(cells: list[tuple[int, int]]) -> torch.Tensor:
        """The distribution after the last of `cells`, each a position and a token."""
        out = []
        for states in halves:
            size = len(states)
            tokens = torch.tensor([[-1] * size + [token for _, token in cells]])
            plan = Plan.full(tokens, Visible.causal())
            where = torch.tensor([[*range(size), *(size + place for place, _ in cells)]])
            soft = torch.nn.functional.pad(states, (0, 0, 0, len(cells)))[None]
            plan = replace(plan, positions=where, span=None, soft=soft, origin=torch.tensor([size]))
            dense = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()[None]
            out.append(target().decoder(replace(plan, visible=Visible.mask(dense))).logits()[0, -1])
        return out[1] + 3.0 * (out[0] - out[1])

    rows: list[list[int]] = [[int(distribution([]).argmax())]] + [[] for _ in range(SIDE - 1)]
    forwards = 1
    while len(rows[-1]) < SIDE:
        forwards += 1
        said = []
        for q, row in enumerate(rows):
            cells = [(r * SIDE + c, token) for r in range(q + 1) for c, token in enumerate(rows[r])]
            if row and len(row) < SIDE:
                said.append((q, int(distribution(cells).argmax())))
            elif not row and q and len(rows[q - 1]) >= lag:
                end = q * SIDE - 1
                if len(rows[q - 1]) < SIDE:
                    cells = [*cells, (end, rows[q - 1][-1])]
                said.append((q, int(distribution(cells).argmax())))
        for q, token in said:
            rows[q].append(token)
    return np.array(rows).ravel(), forwards


@pytest.mark.parametrize("lag", [1, 2, 3, SIDE])
def test_it_is_rows_in_parallel_each_after_the_one_above(lag: int) -> None:
    done = draw(target(), f"zipar:window={lag}", CAPTIONS, **GUIDED)
    for row, caption in enumerate(CAPTIONS):
        picture, forwards = naive(caption, lag)
        assert codes(done, CAPTIONS)[row].tolist() == picture.tolist()
        assert done.nfe[row] == forwards == SIDE + (SIDE - 1) * lag


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_window_of_a_row_is_sequential(temperature: float) -> None:
    asked: dict[str, Any] = {"temperature": temperature, **GUIDED}
    done = draw(target(), f"zipar:window={SIDE}", CAPTIONS, **asked)
    plainly = draw(target(), "sequential+match", CAPTIONS, **asked)
    assert (done.tokens == plainly.tokens).all()
    assert done.nfe == plainly.nfe
    assert done.tokens_fed == plainly.tokens_fed
    if temperature:
        assert (draw(target(), "zipar:window=2", CAPTIONS, **asked).tokens != plainly.tokens).any()


def test_half_a_row_is_the_default_window() -> None:
    plain, half = (draw(target(), spec, CAPTIONS, **GUIDED) for spec in ("zipar", f"zipar:window={SIDE // 2}"))
    assert (plain.tokens == half.tokens).all()
    assert plain.nfe == half.nfe == (SIDE + (SIDE - 1) * SIDE // 2,) * len(CAPTIONS)


def test_it_is_declared_relaxed_and_refuses_what_it_cannot_do() -> None:
    assert registry.resolve("zipar", "ar").exact == "relaxed"
    with pytest.raises(SpecError, match="window=6 is more than the 4 tokens"):
        draw(target(), "zipar:window=6", CAPTIONS)
    with pytest.raises(SpecError, match="window must be at least 1"):
        registry.resolve("zipar:window=0", "ar")
    with pytest.raises(SpecError, match="row above"):
        registry.resolve("zipar+speculative", "ar", sampling=True)
