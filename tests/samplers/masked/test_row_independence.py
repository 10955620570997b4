"""A row's tokens and log-probabilities do not depend on other rows: alone, in ragged batches, and served.

Every stage that remembers something with every stage that moves blocks, for every kind of family.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.cards import MASKED
from pardec.samplers.events import Finished
from tests.grids import one_in, pairwise
from tests.samplers.masked.test_contract import fitting
from tests.samplers.toys import fill, fill_alone, names, prompts, resolved, same, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 5)
CHECKED = (0, 2)  # one that is there from the beginning, and one that joins when a place is free
BLOCKS = ("", "adablock:delimiters=3-5-7", "dcd:masks=2", "dsb", "dsb:most=3", "multiblock", "slowfast")
CACHES = ("", "@dual", "@d2cache:k=2", "@subblock:size=2", "@causal", "@window", "@dkv_greedy")
WAYS = ({}, {"temperature": 0.8, "cfg": 1.5}, {"logprobs": 1})
MORE = (
    *("dus:skip=0.5", "quota:steps=3,tau=none", "spacing+dus", "spacing:base=4+localleap+threshold"),
    *(f"{name},reference=true" for name in ("fixed:steps=3", "timesteps:steps=2", "confident:steps=2")),
)


def specs() -> dict[str, tuple[str, str, str]]:
    """Accepted specs that contain each method, by block, method and cache; one in three of those with both."""
    others = [name for stage in MASKED if stage not in ("block", "cache", "select") for name in names(stage)]
    methods = [*(f"{name}+threshold:tau=0.4" for name in others), *names("select"), *MORE]
    found = {
        "".join((block, "+" * bool(block), method, cache)): (block, method, cache)
        for block, method, cache in product(BLOCKS, methods, CACHES)
        if not (block and cache) or one_in(3, block, method, cache)
    }
    return {spec: parts for spec, parts in found.items() if resolved(spec)}


def axes(spec: str, family: str) -> tuple[Any, ...]:
    """Axes: every method, also with a block rule; all pairs of block rule, cache and family.

    Every method without one, and with caches, is in test_contract.py.
    """
    block, method, cache = SPECS[spec]
    return method, method if block else "", (block, cache), (block, family), (cache, family)


SPECS = specs()
CASES = [(spec, family) for spec in SPECS for family in fitting(spec)]


@cache
def model(family: str) -> pardec.Model:
    return pardec.Model(toy(family, sharp=1.2))


def logprobs(done: Finished, row: int) -> np.ndarray:
    """[L]: log-probabilities of the row's committed tokens; empty if none were recorded."""
    if done.trace.logprobs is None:
        return np.zeros(0)
    return np.asarray(done.trace.logprobs.own[row, : done.trace.lengths[row]])


@pytest.mark.parametrize(("spec", "family"), pairwise(CASES, axes, 1))
def test_a_row_is_the_same_alone_in_a_ragged_batch_and_served(spec: str, family: str) -> None:
    network, given = toy(family, sharp=1.2), prompts(LENGTHS)
    way = WAYS[sum(map(ord, spec)) % 3]
    engine, arguments = model(family), {"sampler": spec, "stop_ids": [], **way}
    try:
        next(iter(engine.run(engine.prepare(input_ids=given, max_new_tokens=4, **arguments))))
    except SpecError as error:
        pytest.skip(str(error))
    whole = fill(network, spec, given, NEW, **way)
    for row in CHECKED:
        alone = fill(network, spec, [given[row]], NEW[row], seeds=[100 + row], **way)
        assert same(alone, 0, whole, row)
        assert np.allclose(logprobs(alone, 0), logprobs(whole, row), atol=1e-4, equal_nan=True)
    items = [{"input_ids": p, "max_new_tokens": n, "seed": i} for i, (p, n) in enumerate(zip(given, NEW, strict=True))]
    with engine.serve_batch(items, batch_size=2, **arguments) as rows:
        served = {row.index: row.tokens for row in rows}
    for row in CHECKED:
        item = items[row]
        own = {"input_ids": [item["input_ids"]], "max_new_tokens": item["max_new_tokens"], "seed": [item["seed"]]}
        assert served[row] == list(engine.generate(**own, **arguments).tokens[0])


# Methods with settings that act in rows as short as these, each with families and distributions in turn.
TUNED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("dream", "above_mean", {"temperature": 0.8, "block_length": 8}),
    ("dream", "contiguous:tau=0.3", {"temperature": 0.8}),
    ("dream", "dapd:first=0.03,last=0.06,switch=0.3,tau=0.1,share=1", {"temperature": 0.8}),
    ("dream", "dawn:low=0.1,induce=0.05,high=0.2,edge=0.04,sink=0.05", {"temperature": 0.8}),
    ("dream", "density:sigma=2+fixed:steps=6", {"temperature": 0.8}),
    ("llada", "edit:tau=0.4+factor@dual", {}),
    ("sdar", "edit:tau=0.4+factor@prefix", {"cfg": 1.5}),
    ("llada", "interpolate+contiguous:tau=0.4+edit:tau=0,post=8,sure=0.9", {"temperature": 0.8}),
    ("dream", "interpolate+contiguous:tau=0.4+edit:tau=0,post=8,sure=0.9@dual", {}),
    ("sdar", "interpolate+contiguous:tau=0.4+edit:tau=0,post=8,sure=0.9@block", {"cfg": 1.5}),
    ("llada", "lopa+threshold:tau=0.3", {"temperature": 0.8}),
    ("dream", "maskgit:steps=5", {"temperature": 0.8}),
    ("sdar", "quota:tau=0.6,steps=3", {"temperature": 0.8}),
    ("dream", "remdm:at=0.5+threshold:tau=0.4@prefix", {"temperature": 0.7}),
    ("shifted-sdar", "remdm:at=0.5+threshold:tau=0.4@dual:refresh=3", {}),
    ("dream", "saber", {"temperature": 0.8, "block_length": 8}),
    ("llada", "smoothing:weight=0.6,most=1+threshold:tau=0.4,fall=0.1@prefix", {"cfg": 1.5}),
    ("dream", "smoothing:weight=0.6,most=1+threshold:tau=0.4,fall=0.1@dual", {"temperature": 0.7}),
    ("llada", "wino:draft=0.4,verify=0.7@dual", {}),
    ("sdar", "wino:draft=0.4,verify=0.7@prefix", {"cfg": 1.5}),
    ("dream", "threshold:tau=0.4@vicinity:before=2,after=1,warmup=2", {"temperature": 0.8}),
    ("llada", "threshold:tau=0.4@dkv:refresh=3,settle=next", {"cfg": 1.5}),
    ("dream", "threshold:tau=0.4@dkv:refresh=0,settle=both,full=2", {"temperature": 0.8}),
    ("sdar", "threshold:tau=0.4@dkv:refresh=2,settle=self,prompt=keep", {"temperature": 0.8}),
    ("llada", "random+fixed:steps=5@dkv_greedy:refresh=0,window=0", {"temperature": 0.8}),
    ("dream", "random+fixed:steps=5@dkv_greedy:refresh=3,window=2", {"cfg": 1.5}),
    ("nemotron", "threshold:tau=0.4@causal", {"cfg": 1.5}),
    ("sdlm", "contiguous:tau=0.3@next_sequence", {"cfg": 1.5}),
    ("nemotron", "threshold:tau=0.4@next_sequence", {"temperature": 0.8}),
    ("llada", "threshold:tau=0.3@d2cache:k=3", {"cfg": 1.5}),
    ("dream", "dsb+threshold:tau=0.3@d2cache", {"temperature": 0.8}),
    ("llada", "dapd@d2cache:k=4", {}),
    ("llada", "threshold:tau=0.4@mlcache:reuse=0.7,refresh=3,warmup=0", {"temperature": 0.8}),
    ("dream", "sequential@spa:response=3,ratio=0.5", {}),
    ("dream", "saber+threshold:tau=0.3@spa:response=3,ratio=0.5", {"cfg": 1.5, "temperature": 0.7}),
    ("dream", "edit+threshold:tau=0.3@spa:response=3,ratio=0.5", {}),
    ("dream", "lopa+threshold:tau=0.3@spa:response=3,ratio=0.5", {"cfg": 1.5, "temperature": 0.7}),
    ("sdar", "threshold:tau=0.4@subblock:size=2", {"temperature": 0.8, "cfg": 1.5}),
    ("shifted-sdar", "threshold:tau=0.4@subblock:size=2", {}),
    ("wedlm", "threshold:tau=0.4@window:slide=true", {"temperature": 0.8}),
    ("wedlm", "threshold:tau=0.4@window:slide=false", {"temperature": 0.8}),
    ("wedlm", "wedlm:tau=1.5@window", {"temperature": 0.8}),
    ("llada", "wedlm:tau=1.5", {"temperature": 0.8}),
)


@pytest.mark.parametrize(("family", "spec", "options"), TUNED)
def test_a_row_alone_is_the_row_in_a_ragged_batch(family: str, spec: str, options: dict[str, Any]) -> None:
    fill_alone(toy(family, sharp=1.2), spec, prompts((5, 2, 9)), (10, 17, 4), **options)


def test_every_masked_method_is_among_them() -> None:
    """Except methods for canvases of random tokens, whose rows their own tests and those of their families test."""
    uniform = ("denoise", "renoise", "selfcondition", "ancestral", "adaptive", "defer")
    for card in registry.cards():
        if card.family == "masked" and card.stage != "cache" and card.name not in uniform:
            assert any(card.name in spec.replace("@", "+").replace(":", "+").split("+") for spec in SPECS), card.name
