"""Heads on the target's last state, Medusa's and Hydra's: greedy text, joints, processors and errors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from tests.grids import chequered
from tests.samplers.ar_toys import rows
from tests.samplers.head_drafts import (
    NEW,
    PROMPTS,
    SHAPES,
    VARIANTS,
    module,
    run,
    spec_of,
    target,
    truth,
)
from tests.samplers.joint_distributions import WORLDS, measure, small
from tests.samplers.module_files import random_module


@pytest.fixture(scope="module", params=VARIANTS)
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DraftModule:
    return module(request.param, target(), tmp_path_factory.mktemp("heads"))


# --- greedy decoding ---


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.covers(1)
def test_k_is_cut_to_the_number_of_heads(k: int, drafter: DraftModule) -> None:
    assert drafter.depth == 3
    done = run(target(), spec_of(drafter, k=k), PROMPTS, NEW, draft_model=drafter)
    assert rows(done) == truth()
    assert max(max(row) for row in done.trace.drafted) == min(k, 3)


@cache
def tiny() -> tuple[LanguageModel, list[list[int]], list[list[int]]]:
    """tiny-llama, ragged prompts, and its greedy tokens."""
    model = load("tiny-llama", device="cpu", dtype="float32")
    drawn = np.random.RandomState(0)
    prompts = [drawn.randint(0, model.vocab_size, size).tolist() for size in (3, 17, 1, 9, 24, 6)]
    return model, prompts, rows(run(model, "sequential", prompts, 16))


@pytest.mark.parametrize(("variant", "shape"), chequered(VARIANTS, SHAPES))
@pytest.mark.covers(1)
def test_tiny_llama_says_what_it_says_without_heads(variant: str, shape: str, tmp_path: Path) -> None:
    model, prompts, plain = tiny()
    own = module(variant, model, tmp_path)
    length = ("", "+unsure:tau=0.3", "+calibrated:h=0.5")[(len(variant) + len(shape)) % 3]
    done = run(model, spec_of(own, f"+{SHAPES[shape]}{length}"), prompts, 16, draft_model=own)
    assert rows(done) == plain


# --- laws ---


@pytest.mark.parametrize(
    ("kind", "shape", "accept"),
    chequered(
        ["medusa", "hydra"],
        [name for name in SHAPES if name != "chain"],
        ["speculative", "rrs", "match", "kseq"],
    ),
)
@pytest.mark.covers(1)
def test_draws_have_the_joint_distribution_of_the_target(kind: str, shape: str, accept: str) -> None:
    """Ragged rows, random weights; chains are among the drafters of test_exact_joint.py."""
    spec = f"{small(kind)}+{small(shape)}+{accept}"
    if shape in ("beam", "dyspec") and accept == "kseq":
        with pytest.raises(SpecError, match="needs independent samples|kseq depends on the number of siblings"):
            registry.resolve(spec, "ar", sampling=True)
        return
    for reading in measure(spec, WORLDS["5 tokens, length 4"], 4000):
        assert reading.z < 4, reading
        assert reading.distance < reading.noise + 4 * reading.spread, reading


@pytest.mark.parametrize("shape", ["chain", "paths", "beam"])
@pytest.mark.covers(1)
def test_processors_that_read_the_path_are_kept(shape: str, drafter: DraftModule) -> None:
    """With a penalty, the distributions of a level differ, whatever the heads read."""
    spec = spec_of(drafter, f"+{SHAPES[shape]}")
    more: dict[str, Any] = {"repetition_penalty": 1.7}
    done = run(target(), spec, PROMPTS, NEW, draft_model=drafter, **more)
    assert rows(done) == rows(run(target(), "sequential", PROMPTS, NEW, **more))


# --- errors ---


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_weights_that_are_not_finite_are_named(kind: str) -> None:
    own: Any = random_module(kind, target())
    own.heads[1].out.weight[2, 3] = torch.nan
    with pytest.raises(ModelError, match="its weight heads.1.out.weight holds NaN or infinity"):
        run(target(), f"{kind}:name=toy,k=3", PROMPTS, NEW, draft_model=own)
