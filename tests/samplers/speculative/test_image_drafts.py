"""Drafters on images: the codes of sequential decoding, alone, in any batch, and guided; refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.ops.allowed import AllowedRows
from pardec.samplers.request import Allowed
from pardec.samplers.speculative.draft.image_grid import copy_left, copy_up
from pardec.samplers.speculative.draft.sjd import Sjd
from pardec.samplers.speculative.draft.text_history import GridIndex
from pardec.samplers.speculative.sequences import Sequences
from tests.grids import pairwise, thinned
from tests.samplers.ar_toys import run, toy_ar
from tests.samplers.module_files import random_modules
from tests.samplers.picture_toys import (
    CAPTIONS,
    GUIDED,
    SIDE,
    VOCAB,
    codes,
    draw,
    features,
    logits,
    target,
    toy_pictures,
)

TEXT = ("diffusion", "idlm", "longspec", "sparsekv", "triforce")  # what reads K/V of a text, which a condition is not
SPECS = [
    *(f"sjd:window={window},init={init}" for window, init in ((8, "left"), (12, "up"), (4, "random"), (8, "repeat"))),
    "sjd",
    "sjd:refresh=gumbel,init=up",
    "sjd:uniform=true",
    "jacobi:init=left",
    "jacobi:init=up,policy=block,window=7",
    "seeded_jacobi:init=left",
    "lookup:context=grid,k=4",
    "lookup:context=grid,prefer=first",
    "lookup",
    "copyspec:suffix=1",
    "suffix:k=4,factor=2",
    "aggressive",
    "lookahead:window=3,ngram=3,guesses=2",
    "recycling:k=3,tree=3-4-2",
    "model:name=toy,k=4",
    "model:name=toy,k=3+template:widths=3-2-1",
    'auto:model="model:name=toy,k=3",measured=false',
    'rasd:model="model:name=toy,k=3",span=3,nodes=6',
    "aded",
    "dflash:name=toy,k=2",
    "linearspec:mask=8,k=4",
    "linearspec:mask=8,k=3,shift=1+template:widths=2-2-1",
    "pearl:name=toy,k=3",
    "rapid:name=toy,k=3,chunk=2,chunks=1,query=2,begin=1",
    "falcon:name=toy,k=3",
    "hydra:name=toy,k=3",
    "medusa:name=toy,k=3",
    "prompts:name=toy",
    "transfer:name=toy",
    "eagle:name=toy,k=4",
    "eagle:name=toy,k=3+template:widths=3-2-1",
    "earlyexit:layers=1,k=3",
    "earlyexit:layers=2,k=3+template:widths=2-2-1",
    "del:k=3",
    "del:k=3+template:widths=2-2-1",
    "kangaroo:name=toy,k=3",
    "kangaroo:name=toy,k=3+template:widths=2-2-1",
    "mtp:name=toy,k=3",
    "mtp:name=toy,k=3+template:widths=2-2-1",
    "sorted:name=toy,exits=1-2-4,tau=0.4,k=3",
    "layerskip:k=3",
    "layerskip:k=3,skip=search,context=6",
    "layerskip:k=3+template:widths=2-2-1",
]


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(draft_models, "language_model", lambda name, device, dtype: small())
    with random_modules():
        yield


@cache
def small() -> LanguageModel:
    """The target with perturbed weights: a drafter that is often right and often wrong."""
    return toy_pictures(5, SIDE, VOCAB, 0.7, layers=4, knock=1)


@cache
def plain() -> np.ndarray:
    """Greedy images without cache, loop or batch: one whole forward per cell."""
    made = []
    for caption in CAPTIONS:
        picture = torch.zeros(1, SIDE * SIDE, dtype=torch.int64)
        for cell in range(SIDE * SIDE):
            picture[0, cell] = logits(target(), caption, picture, cfg=3.0)[0, cell].argmax()
        made.append(picture[0].numpy())
    return np.stack(made)


def of_its_own(spec: str) -> bool:
    """Whether test_image_contract.py has no greedy images of the drafter with such settings: models without a tree."""
    return "name=toy" not in spec or "template" in spec or spec.startswith("model")


@pytest.mark.parametrize("spec", thinned(((spec,) for spec in ("sequential", *SPECS)), of_its_own))
def test_at_temperature_0_pictures_are_those_of_whole_forwards(spec: str) -> None:
    done = draw(target(), spec, CAPTIONS, **GUIDED)
    assert (codes(done, CAPTIONS) == plain()).all()
    assert max(done.nfe) <= SIDE * SIDE
    if spec.startswith("model"):
        assert max(done.nfe) < 0.8 * SIDE * SIDE  # some of what a near model drafts is accepted
    if "search" in spec:
        assert sum(done.draft_forwards) > 0


def each_drafter(spec: str) -> tuple[Any, ...]:
    """The drafter, and whether its drafts are trees."""
    return (spec.split(":")[0].split("+")[0], "template" in spec)


@pytest.mark.parametrize(
    "spec",
    pairwise(
        [(spec,) for spec in (*SPECS, "zipar:window=2", "zipar", "pjd:lag=1") if "search" not in spec],
        lambda spec: (each_drafter(spec),),
        1,
    ),
)
def test_a_picture_alone_is_the_picture_in_any_batch(spec: str) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "top_k": 5, **GUIDED}
    together = draw(target(), spec, CAPTIONS, seeds=range(7, 11), **asked)
    alone = draw(target(), spec, CAPTIONS[1:2], seeds=[8], **asked)  # the shortest caption
    assert (codes(alone, CAPTIONS[1:2])[0] == codes(together, CAPTIONS)[1]).all()
    assert alone.nfe[0] == together.nfe[1]


def test_every_drafter_was_drawn_with() -> None:
    names = {card.name for card in registry.cards() if card.stage == "draft"} - {"sequential", "zipar", "pjd", *TEXT}
    assert names <= {part.split(":")[0].split("+")[0] for part in SPECS}


# --- what stands to the left and above ---


def context(cells: list[list[int]], prompts: list[int], side: int) -> tuple[Sequences, list[list[int]]]:
    rows = [torch.tensor([-1] * size + row) for row, size in zip(cells, prompts, strict=True)]
    text = Sequences(rows, [size + side * side for size in prompts], pad_id=0)
    text.prompt = np.array(prompts)
    return text, cells


@pytest.mark.parametrize("seed", range(6))
def test_copies_are_those_of_a_walk_over_the_cells(seed: int) -> None:
    dice = np.random.RandomState(seed)
    side, width = 4, 11
    done = [dice.randint(0, 50, dice.randint(1, 16)).tolist() for _ in range(5)]
    text, cells = context(done, dice.randint(1, 5, 5).tolist(), side)
    known = dice.randint(0, width, 5)
    guesses, drawn = (
        torch.from_numpy(dice.randint(50, 70, (5, width))),
        torch.from_numpy(dice.randint(70, 99, (5, width))),
    )
    for step, copied in ((1, copy_left), (side, copy_up)):
        found = copied(text, guesses, known, drawn, side)
        for row, start in enumerate(cells):
            picture = list(start)
            for place in range(width):
                cell = len(picture)
                there = cell % side > 0 if step == 1 else cell >= side
                token = int(guesses[row, place]) if place < known[row] else int(drawn[row, place])
                if place >= known[row] and there:
                    token = picture[cell - step]
                picture.append(token)
            assert found[row].tolist() == picture[len(start) :]


def test_defaults_of_pictures_and_of_text() -> None:
    text, drafter = toy_ar(0), Sjd()
    assert (drafter.width(target()), drafter.opening(target())) == (32, "left")
    assert (drafter.width(text), drafter.opening(text)) == (16, "random")
    assert Sjd(uniform=True).opening(target()) == "random"
    assert run(text, "sjd", [[1, 2]], 20, temperature=1.0).tokens.tolist() == (
        run(text, "sjd:window=16,init=random", [[1, 2]], 20, temperature=1.0).tokens.tolist()
    )


def test_copies_of_neighbours_make_flat_pictures_quick() -> None:
    """Where neighbours are mostly alike, a window of copies is accepted far more often than random tokens."""
    model = toy_pictures(5, 5, VOCAB, 0.7)
    stack: Any = model.decoder
    with torch.no_grad():
        stack.embed.weight.copy_(torch.eye(VOCAB, 16) * 4)
        stack.head.weight.copy_(torch.eye(VOCAB, 16) * 0.8)
        for name, weight in stack.named_parameters():
            if "out_weight" in name or "down_weight" in name:
                weight.mul_(0.1)
    captions = features([2] * 40)
    made = {
        init: np.mean(draw(model, f"sjd:window=16,init={init}", captions, temperature=1.0).nfe)
        for init in ("left", "up", "random")
    }
    assert made["left"] < 0.85 * made["random"]
    assert made["up"] < made["random"]


@pytest.mark.parametrize(
    "spec",
    [
        "sjd:init=left",
        "sjd:init=up",
        "jacobi:init=left",
        "seeded_jacobi:init=up",
        "lookup:context=grid",
        "zipar",
        "pjd",
    ],
)
def test_a_model_without_a_grid_is_refused_by_name_before_any_forward(spec: str) -> None:
    model = toy_ar(0)
    model.decoder = SimpleNamespace(new_cache=model.decoder.new_cache)  # type: ignore[assignment]
    with pytest.raises(SpecError, match=f"{spec.split(':')[0]}.*toy generates no images") as boosted:
        run(model, spec, [[1, 2]], 4)
    assert boosted.value.hint


# --- lookup ---


def test_neighbours_that_were_seen_before_by_hand() -> None:
    # 1 2 3
    # 4 2 3     after 4 | 2 above: nothing; after 2 | 3: nothing; the cell below 4 has 4 above, nothing to the left
    # 4 5 .     left 5, above 3: none
    cells = GridIndex(2, 3)
    cells.extend([-1, -1, 1, 2, 3, 4, 2, 3, 4, 5])
    assert cells.match() is None
    again = GridIndex(1, 3)
    again.extend([-1, 1, 2, 2, 1, 2, 2])
    assert again.match() == 4  # first column, 1 above: as the cell at place 4 has
    again.extend([1])
    assert again.match() == 5  # 1 to the left, 2 above
    first, last = GridIndex(0, 2, first=True), GridIndex(0, 2)
    for cells in (first, last):
        cells.extend([1, 1, 1, 1, 1, 5, 1])  # rows 1 1 / 1 1 / 1 5 / 1 .
    assert last.starts[1, 1] == 5
    assert first.starts[1, 1] == 3


def test_what_lookup_cannot_do_on_a_grid_is_refused() -> None:
    with pytest.raises(SpecError, match="context=grid"):
        registry.resolve("lookup:context=grid,prefer=longest", "ar")


# --- positions without a choice ---


def ending(model: LanguageModel, token: int = 2) -> Allowed:
    """Allows only `token` in the last column, for the captions CAPTIONS."""
    sets = torch.ones(2, VOCAB, dtype=torch.bool)
    sets[1] = torch.arange(VOCAB) == token
    last = (torch.arange(SIDE * SIDE) % SIDE == SIDE - 1).long()
    return Allowed(sets, tuple(torch.cat((torch.zeros(len(caption), dtype=torch.int64), last)) for caption in CAPTIONS))


@pytest.mark.parametrize("spec", ["sequential", "sjd:window=8", "sjd:window=8,init=random,refresh=gumbel", "jacobi"])
def test_forced_cells_are_passed_for_certain_and_left_out_of_the_counts(spec: str) -> None:
    allowed = ending(target())
    done = draw(target(), spec, CAPTIONS, temperature=1.0, allowed=allowed, **GUIDED)
    pictures = codes(done, CAPTIONS).reshape(-1, SIDE, SIDE)
    assert (pictures[:, :, -1] == 2).all()
    trace = done.trace
    for row in range(len(CAPTIONS)):
        steps = trace.commit_step[row, len(CAPTIONS[row]) :][: SIDE * SIDE].reshape(SIDE, SIDE)
        assert sum(trace.forced[row]) == SIDE
        assert trace.forced[row] == tuple(np.bincount(steps[:, -1], minlength=done.nfe[row]).tolist())
        free = np.bincount(steps[:, :-1].ravel(), minlength=done.nfe[row]).tolist()
        assert trace.gained[row] == free
        for accepted, drafted, gained in zip(trace.accepted[row], trace.drafted[row], free, strict=True):
            assert gained - 1 <= accepted <= min(drafted, gained)
    if spec != "sequential":  # what stands after the end of a line was drafted in the same round, never drawn alone
        assert all(0 in trace.gained[row] or done.nfe[row] < SIDE * SIDE - 3 for row in range(len(CAPTIONS)))


def test_without_forced_cells_nothing_is_told_of_them() -> None:
    free = Allowed(torch.ones(1, VOCAB, dtype=torch.bool), (torch.zeros(28, dtype=torch.int64),))
    assert AllowedRows(free, 1, torch.device("cpu")).forced is None
    assert draw(target(), "sjd:window=4", CAPTIONS, **GUIDED).trace.forced == ()
