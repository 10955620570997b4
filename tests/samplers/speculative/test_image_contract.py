"""Every drafter with every acceptance on an image model at temperature 0, guided and unguided, in ragged batches.

Later methods are covered as they arrive. What is exact there gives the codes of whole greedy forwards; what cannot be
combined is refused by name. The same is checked of text in test_verify_contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import SpeculativeSampler
from tests.grids import one_in, thinned
from tests.samplers.drafter_checks import SETTINGS
from tests.samplers.module_files import random_modules
from tests.samplers.picture_toys import codes, draw, features, logits, toy_pictures
from tests.samplers.toys import resolved

SIDE, VOCAB = 3, 7
CAPTIONS = features((3, 1, 2), seed=6)
KINDS = ("dflash", "eagle", "falcon", "hydra", "kangaroo", "medusa", "model", "mtp", "pearl", "sorted")
NEEDS = {kind: f"{kind}:name=toy,k=3" for kind in KINDS} | {  # what a drafter cannot do without
    "auto": 'auto:model="model:name=toy,k=3"',
    "judge": "judge:head=toy,thr=0.5",
    "linearspec": "linearspec:mask=6,k=3",
    "prompts": "prompts:name=toy",
    "rasd": 'rasd:model="model:name=toy,k=3",span=3,nodes=6',
    "reflective": 'reflective:probe=""',
    "transfer": "transfer:name=toy",
}
TEXT = ("diffusion", "idlm", "longspec", "sparsekv", "triforce")  # what reads K/V of a text, which a condition is not
GREEDY_AT_0 = ("typical", "gsd", "lenience")  # relaxed ones whose cards say that they are `greedy` at temperature 0


def stages(stage: str) -> list[str]:
    return [
        NEEDS.get(card.name, card.name) for card in registry.cards() if card.stage == stage and card.name not in TEXT
    ]


ACCEPTANCES = [
    f"{name}{more}" for name in stages("accept") for more in ("", *(f":{x}" for x in SETTINGS.get(name, ())))
]
SHAPES = [f"{NEEDS['model']}+{shape}" for shape in stages("shape")]
SPECS = [
    *(f"{draft}+{accept}" for draft, accept in product(stages("draft"), ACCEPTANCES)),
    *(f"{shape}+{accept}" for shape, accept in product(SHAPES, stages("accept"))),
]
UNGUIDED = [f"{draft}+{accept}" for draft, accept in product(stages("draft"), stages("accept"))]


def ordinary(spec: str, cfg: float | None) -> bool:
    """Every drafter and shape, and each acceptance with `sjd`, guided; one in 96 of the other pairs."""
    return (cfg is not None and (spec.endswith("+match") or spec.startswith("sjd+"))) or one_in(96, spec, cfg)


@cache
def target() -> LanguageModel:
    return toy_pictures(5, SIDE, VOCAB, 0.7, layers=3)


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(draft_models, "language_model", lambda *_: toy_pictures(5, SIDE, VOCAB, 0.7, layers=3, knock=1))
    with random_modules():
        yield


@cache
def plain(cfg: float | None) -> np.ndarray:
    """Greedy images without cache, loop or batch: one whole forward per cell."""
    made = []
    for caption in CAPTIONS:
        picture = torch.zeros(1, SIDE * SIDE, dtype=torch.int64)
        for cell in range(SIDE * SIDE):
            picture[0, cell] = logits(target(), caption, picture, cfg=cfg)[0, cell].argmax()
        made.append(picture[0].numpy())
    return np.stack(made)


def exact(spec: str, made: SpeculativeSampler) -> bool:
    """Whether its codes at temperature 0 are those of greedy decoding."""
    drafter, accept = (spec.split("+")[0], spec.split("+")[-1].split(":")[0])
    return made.exact == "greedy" or (accept in GREEDY_AT_0 and drafter not in ("zipar", "pjd"))


@pytest.mark.parametrize(
    ("spec", "cfg"),
    thinned(((s, cfg) for cfg, some in ((3.0, SPECS), (None, UNGUIDED)) for s in some if resolved(s, "ar")), ordinary),
)
def test_at_temperature_0_every_pair_draws_and_exact_ones_draw_greedily(spec: str, cfg: float | None) -> None:
    made = resolved(spec, "ar")
    found = codes(draw(target(), spec, CAPTIONS, cfg=cfg), CAPTIONS)
    assert found.shape == (3, SIDE * SIDE)
    assert ((found >= 0) & (found < VOCAB)).all()
    if exact(spec, made):
        assert (found == plain(cfg)).all()


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not resolved(spec, "ar")])
def test_what_cannot_be_combined_is_refused_by_name(spec: str) -> None:
    with pytest.raises(SpecError) as boosted:
        registry.resolve(spec, "ar")
    names = {part.split(":")[0] for part in spec.split("+")}
    assert any(name in str(boosted.value) for name in names)
    assert boosted.value.hint


def test_every_acceptance_and_drafter_is_drawn_with() -> None:
    drawn = [spec for spec in SPECS if resolved(spec, "ar")]
    for stage in ("draft", "accept", "shape"):
        for card in registry.cards():
            if card.stage == stage and card.name not in TEXT:
                found = any(card.name in (part.split(":")[0] for part in spec.split("+")) for spec in drawn)
                assert found, f"no spec with {card.name} draws images: NEEDS has its parameters, TEXT what is for text"
