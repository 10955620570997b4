"""`mar:order=local`: tokens of a group are far apart and near to known tokens, by hand and by a plain version."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.models.load import load_continuous
from pardec.samplers.continuous.methods.mar import local_order
from pardec.samplers.ops.unmasking import unmasking
from tests.samplers.readable_classes import PLAIN, decoded, readable
from tests.samplers.vector_toys import ToyBackbone, ToyHead, generate, toy

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mar" / "checkpoint"


@pytest.fixture(scope="module")
def model() -> ContinuousModel:
    return load_continuous(GOLDEN, device="cpu")


def naive(rows: int, columns: int, sizes: list[int], keys: np.ndarray) -> list[list[int]]:
    """The groups, with distances computed one by one."""

    def distance(one: int, two: int) -> float:
        return math.dist(divmod(one, columns), divmod(two, columns))

    every, known, groups = range(rows * columns), set[int](), []
    for size in sizes:
        proximity = {
            at: sum(1 / distance(at, other) for other in known if 0 < distance(at, other) < 1.5)
            for at in every
            if at not in known
        }
        group: list[int] = []
        for at in sorted(proximity, key=lambda at: (-round(proximity[at], 6), keys[at])):
            if len(group) < size and proximity[at] > 1 - 1e-6 and all(distance(at, other) > 1.5 for other in group):
                group.append(at)
        while len(group) < size:
            left = [at for at in proximity if at not in group]
            gap = {at: min((distance(at, other) for other in group), default=proximity[at]) for at in left}
            group.append(min(left, key=lambda at: (-round(gap[at], 6), keys[at])))
        groups.append(group)
        known |= set(group)
    return groups


def three_by_three_by_hand() -> None:
    """The lowest key, its farthest cell, the two cells between them that are not neighbours, then the rest."""
    keys = np.array([0.1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    rank = local_order(3, 3, np.array([0, 1, 2, 4, 9]), keys)
    # 0 is known: 1 and 3 touch it, 3 has the lower key. Then 0 and 3 are known: 1 and 4 have 1 + .71, 4 the lower key
    # of the two; of those that are no neighbours of 4 there are none left, and 8, 2 and 6 are 1.41 away: 8 by its key.
    assert rank.argsort().tolist()[:4] == [0, 3, 4, 8]
    # Two rows of three: 1 and 3 touch 0, side by side and below it, and 3 has the lower key; 4 touches at a corner.
    two_rows = local_order(2, 3, np.array([0, 1, 2, 6]), np.array([0.1, 0.5, 0.6, 0.2, 0.15, 0.8]))
    assert two_rows.argsort().tolist()[:2] == [0, 3]
    in_a_row = local_order(1, 5, np.array([0, 1, 3, 5]), np.array([0.5, 0.2, 0.1, 0.3, 0.4]))
    assert in_a_row.argsort().tolist()[:3] == [2, 1, 3], "a known neighbour, 1 / 1, is enough: 3, not the farther 4"


@pytest.mark.parametrize(("rows", "columns", "steps"), [(4, 4, 5), (6, 6, 16), (5, 7, 8), (8, 8, 12)])
def test_groups_are_those_of_a_plain_version(rows: int, columns: int, steps: int) -> None:
    for seed in range(3):
        keys, bounds = np.random.RandomState(seed).rand(rows * columns), unmasking(rows * columns, steps).bounds
        order = local_order(rows, columns, bounds, keys).argsort().tolist()
        got = [order[start:stop] for start, stop in pairwise(bounds)]
        assert got == naive(rows, columns, np.diff(bounds).tolist(), keys)


def test_images_are_sampled_in_that_order_and_a_row_alone_is_the_row_in_a_batch(model: ContinuousModel) -> None:
    spec = "mar:steps=5,order=local"
    together = generate(model, spec, labels=(3, 1, 4), seeds=(5, 6, 7), cfg=2.5)
    sizes = np.diff(unmasking(16, 5).bounds).tolist()
    for row, (label, seed) in enumerate(((3, 5), (1, 6), (4, 7))):
        alone = generate(model, spec, labels=(label,), seeds=(seed,), cfg=2.5)
        assert (together.trace.commit_step[row] == alone.trace.commit_step[0]).all()
        np.testing.assert_allclose(together.latents[row], alone.latents[0], atol=1e-5 * np.abs(alone.latents).max())  # type: ignore[index,arg-type]
        assert np.bincount(alone.trace.commit_step[0]).tolist() == sizes
    assert len({tuple(steps) for steps in together.trace.commit_step.tolist()}) == 3
    plain = generate(model, "mar:steps=5", labels=(3, 1, 4), seeds=(5, 6, 7), cfg=2.5)
    assert beside(together.trace.commit_step, 4) < beside(plain.trace.commit_step, 4)


def beside(when: np.ndarray, side: int) -> int:
    """How many pairs of neighbours are sampled at one step."""
    each = when.reshape(-1, side, side)
    return int((each[:, 1:] == each[:, :-1]).sum() + (each[:, :, 1:] == each[:, :, :-1]).sum())


def test_a_causal_model_has_its_own_order() -> None:
    causal = toy("causal", ToyHead(2, 3), ToyBackbone(4, 2, causal=True))
    with pytest.raises(SpecError, match="causal samples in raster order"):
        generate(causal, "mar:order=local")


def test_three_by_three_by_hand() -> None:
    three_by_three_by_hand()


@pytest.mark.slow  # seconds for 8 images in either order; the tests above have the rule
@pytest.mark.seeds("arXiv:2507.01957")
def test_tokens_of_a_step_are_farther_apart_than_in_a_random_order_and_classes_stay_readable(
    model: ContinuousModel,
) -> None:
    three_by_three_by_hand()
    test_groups_are_those_of_a_plain_version(6, 6, 16)
    test_images_are_sampled_in_that_order_and_a_row_alone_is_the_row_in_a_batch(model)
    near, local = {}, f"{PLAIN},order=local"
    for spec in (PLAIN, local):
        near[spec] = beside(decoded(spec).trace.commit_step, 6)
    assert near[local] < near[PLAIN] / 2
    assert readable(local) >= readable(PLAIN) - 1
