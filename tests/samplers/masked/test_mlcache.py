"""`mlcache`: positions with the lowest maximum logits are computed, K/V and logits of the others reused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.eight_tokens import LAWS, MASK, TOKENS
from tests.samplers.masked_pictures import CAPTIONS, check_published, draw, painter
from tests.samplers.query_parity import queried
from tests.samplers.toys import request, run, table


@pytest.mark.parametrize(("reuse", "places"), [(0.75, (3, 7)), (0.5, (1, 3, 5, 7)), (1, (3,)), (0, tuple(range(8)))])
def test_what_is_computed_by_hand(reuse: float, places: tuple[int, ...]) -> None:
    """floor((1 - reuse) 7) + 1 of eight positions, whose logits do not change: the least probable ones."""
    spec = f"sequential@mlcache:reuse={reuse},refresh=0,warmup=0"
    got = run(table(LAWS), spec, request([[MASK] * 8], [0], block_length=8))
    assert queried(got) == [tuple(range(8)), *[places] * 7]
    assert got.trace.commit_step[0].tolist() == [1, 5, 2, 7, 0, 4, 3, 6]  # candidates of what is reused are there
    assert got.tokens[0].tolist() == list(TOKENS)


def test_refreshes_and_the_warmup_by_hand() -> None:
    """All positions at steps 0 to 1 and at every third step; without a schedule the warm-up ends with step 5."""
    asked = request([[MASK] * 8], [0], block_length=8)
    got = run(table(LAWS), "sequential@mlcache:refresh=3,warmup=1", asked)
    assert [len(each) for each in got.trace.fed[0]] == [8, 8, 1, 1, 8, 1, 1, 8]
    got = run(table(LAWS), "sequential@mlcache:refresh=0,warmup=1", asked)
    assert [len(each) for each in got.trace.fed[0]] == [8, 8, *[1] * 6]
    assert [len(each) for each in run(table(LAWS), "sequential@mlcache", asked).trace.fed[0]] == [*[8] * 6, 1, 1]


def test_of_a_schedule_of_eight_steps_three_are_the_warmup_and_of_equal_logits_the_first_is_computed() -> None:
    """floor(.3 * 8) = 2 is the last step of the warm-up."""
    asked = request([[MASK] * 8], [0], block_length=8)
    quarters = torch.tensor([0.25] * 4 + [0.0] * 3).expand(8, 7)
    got = run(table(quarters), "fixed:steps=8@mlcache:refresh=0", asked)
    assert queried(got) == [*[tuple(range(8))] * 3, *[(0,)] * 5]


@pytest.mark.parametrize("cfg", [None, 3.5])
@pytest.mark.parametrize("cache", [(0.9, 5, 0.3), (0.6, 3, 0.0)])
@pytest.mark.parametrize(("published", "temperature"), [("dimoo", 1.0), ("dimoo", 0.7), ("mmada", 1.0)])
@pytest.mark.parametrize("caption", CAPTIONS)
@pytest.mark.covers(2)
def test_the_published_loop_step_by_step(
    caption: str, published: str, temperature: float, cache: tuple[float, int, float], cfg: float | None
) -> None:
    check_published(caption, published, temperature, cache, cfg)


def test_a_picture_feeds_a_tenth_between_refreshes() -> None:
    done = draw(painter(), "maskgit:steps=6,noise=1@mlcache:reuse=0.9,refresh=3,warmup=1", ["abc"], temperature=1.0)
    assert [len(each) for each in done.trace.fed[0]] == [13, 13, 2, 2, 13, 2]


@pytest.mark.parametrize("options", [{}, {"cfg": 2.5}, {"cfg": 2.5, "negatives": ["hhhhhhhh", None, "b"]}])
@pytest.mark.parametrize(
    "cache", ["dual:refresh=1", "prefix:refresh=1", "dkv:refresh=1", "mlcache:refresh=1", "mlcache:reuse=0"]
)
@pytest.mark.covers(2)
def test_refreshing_at_every_step_is_no_cache_for_pictures(cache: str, options: dict[str, Any]) -> None:
    plain, cached = (
        draw(painter(sharp=1.1), f"maskgit:steps=5,noise=1@{each}", CAPTIONS, temperature=1.0, **options)
        for each in ("none", cache)
    )
    assert (plain.tokens == cached.tokens).all()
    assert (plain.trace.commit_step == cached.trace.commit_step).all()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("threshold@mlcache:reuse=1.5", "reuse must be at most 1, got 1.5|reuse must lie"),
        ("threshold@mlcache:refresh=-1", "refresh must be at least 0, got -1"),
        ("threshold@mlcache:warmup=-1", "warmup must be at least 0, got -1"),
        ("wino@mlcache", "wino needs new leave-one-out predictions at every step, and mlcache"),
    ],
)
def test_what_is_refused(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        resolve(spec)
    assert resolve("sequential@mlcache:refresh=1").exact == "greedy"
