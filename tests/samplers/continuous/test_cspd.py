"""`cspd` in both modes: refusals, a draft equal to the target, independent rows, counts, and MAR."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pardec.models.errors import ModelError, SpecError
from pardec.requests import draft_models
from pardec.samplers.continuous.methods import cspd as _cspd_exact
from pardec.samplers.ops.denoising_paths import rescore
from pardec.samplers.registry import resolve
from tests.samplers.spec_checks import refused_specs
from tests.samplers.vector_toys import ToyBackbone, ToyHead, generate, latents_of, mar, pair, toy

ROWS = {"seeds": (5, 6, 7), "labels": (3, 0, -1)}
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mar" / "checkpoint"


test_what_would_be_unsound_or_idle_is_refused = refused_specs(
    [
        ("cspd:slack=0.5,mode=exact", "slack must be at least 1, got 0.5"),
        ("cspd:slack=2", "slack=2.0 does not apply to mode=reference"),
        ("cspd:mode=exact,tau=2", "tau=2.0 does not apply to mode=exact"),
        ("cspd:mode=exact,derived=true", "derived=True does not apply to mode=exact"),
        ("cspd:mode=exact,reference=true", "reference=True does not apply to mode=exact"),
        ("cspd:last=x1", "last=x1 does not go with mode=reference"),
        ("cspd:mode=exact,last=map", "last=map with k=8 is not exact"),
        ("cspd:mode=lossless", "reference, exact"),
    ],
    family="continuous",
)


def test_what_a_token_is_follows_the_mode_and_is_stored() -> None:
    published, exact = resolve("cspd:draft=d", "continuous"), resolve("cspd:draft=d,mode=exact", "continuous")
    assert "last=map" in str(published.spec)
    assert "last=x1" in str(exact.spec)
    for made in (published, exact):
        assert resolve(made.spec, "continuous").spec == made.spec
    assert (published.exact, exact.exact) == ("relaxed", "distribution")
    assert resolve("cspd:draft=d,mode=exact,slack=2", "continuous").exact == "relaxed"
    assert resolve("cspd:draft=d,mode=exact,last=map,k=1", "continuous").exact == "distribution"


def test_a_request_that_cannot_be_served_is_refused() -> None:
    target, draft = pair(4, 2, 3)
    with pytest.raises(SpecError, match="draft is missing"):
        generate(target, "cspd", draft=draft)
    for mode in ("reference", "exact"):
        with pytest.raises(SpecError, match="temperature=0.0 has none"):
            generate(target, f"cspd:draft=d,mode={mode}", draft=draft, temperature=0.0)
    for other, match in (
        (toy("d", draft.head, ToyBackbone(5, 2)), "5 tokens per image, not 4"),
        (toy("d", ToyHead(3, 3), ToyBackbone(4, 3)), "3 numbers per token, not 2"),
        (toy("d", ToyHead(2, 4), ToyBackbone(4, 2)), "4 steps of the head, not 3"),
    ):
        with pytest.raises(ModelError, match=match):
            generate(target, "cspd:draft=d", draft=other)


def test_the_draft_is_loaded_once_as_the_target_is() -> None:
    with patch.object(draft_models, "load_continuous", wraps=draft_models.load_continuous) as loading:
        first, again = (
            draft_models.continuous_model(str(GOLDEN), torch.device("cpu"), torch.float32) for _ in range(2)
        )
    assert first is again
    loading.assert_called_once_with(str(GOLDEN), device=torch.device("cpu"), dtype=torch.float32)


# --- a draft that is the target ---


@pytest.mark.parametrize("cfg", [None, 2.5])
@pytest.mark.parametrize(
    ("spec", "last"),
    [
        ("mode=exact,k=3", "x1"),
        ("mode=exact,k=4,last=noise,prefill=0", "noise"),
        ("mode=exact,k=1,last=map", "map"),
        ("mode=exact,k=20,prefill=0.5", "x1"),
        ("k=1", "map"),  # published: with k above 1 the target sees less than the draft, and the distributions differ
        ("k=1,tau=1,derived=true,reference=true", "map"),
    ],
)
@pytest.mark.covers(1)
def test_a_draft_that_is_the_target_is_accepted_and_gives_its_pictures(spec: str, last: str, cfg: float | None) -> None:
    model = mar()
    plain = generate(model, f"mar:steps=7,last={last}", cfg=cfg, **ROWS)  # type: ignore[arg-type]
    end = generate(model, f"cspd:draft=d,steps=7,{spec}", draft=model, cfg=cfg, **ROWS)  # type: ignore[arg-type]
    assert (latents_of(end) == latents_of(plain)).all()
    assert end.trace.accepted == end.trace.drafted
    assert sum(end.trace.drafted[0]) > 0


def test_the_same_checkpoint_by_another_path_is_the_target() -> None:
    from pardec.models.load import load_continuous

    draft_models.continuous_model.cache_clear()
    target = load_continuous(GOLDEN, device="cpu")
    for name in (str(GOLDEN), os.path.relpath(GOLDEN)):
        made = draft_models.continuous_model(name, target.device, target.dtype)
        with patch.object(_cspd_exact, "rescore", side_effect=AssertionError("nothing is to be tested")):
            end = generate(target, "cspd:draft=d,mode=exact,steps=5,k=2", draft=made)
        assert (latents_of(end) == latents_of(generate(target, "mar:steps=5,last=x1"))).all()
    draft_models.continuous_model.cache_clear()


def test_equal_weights_of_another_name_are_accepted_but_for_rounding() -> None:
    """The draft has another name, so its paths are tested; the target's distributions are from another batch shape."""
    model, twin = (replace(mar(), head=ToyHead(4, 6)) for _ in range(2))
    with patch.object(_cspd_exact, "rescore", wraps=rescore) as tested:
        end = generate(model, "cspd:draft=d,mode=exact,steps=7,k=3", draft=replace(twin, name="twin"), **ROWS)  # type: ignore[arg-type]
    assert tested.call_count > 0
    assert end.trace.accepted == end.trace.drafted
    plain = generate(model, "mar:steps=7,last=x1", **ROWS)  # type: ignore[arg-type]
    np.testing.assert_allclose(latents_of(end), latents_of(plain), atol=1e-5)


# --- rows ---


@pytest.mark.parametrize("cfg", [None, 2.0])
@pytest.mark.parametrize(
    "spec",
    [
        "cspd:draft=d,k=3,steps=8",
        "cspd:draft=d,k=2,steps=6,prefill=0,tau=1",
        "cspd:draft=d,k=3,steps=8,mode=exact,prefill=0",
        "cspd:draft=d,k=4,steps=12,mode=exact,last=noise",
        "cspd:draft=d,k=1,steps=6,mode=exact,last=map",
    ],
)
@pytest.mark.covers(1)
def test_a_row_alone_is_the_row_in_any_batch(spec: str, cfg: float | None) -> None:
    target, draft = pair(12, 2, 5, curved=True)
    seeds, labels = tuple(range(40, 48)), (0, 1, 2, 3, -1, 0, 1, 2)
    together = generate(target, spec, draft=draft, seeds=seeds, labels=labels, cfg=cfg)
    for row in range(len(seeds)):
        alone = generate(target, spec, draft=draft, seeds=seeds[row : row + 1], labels=labels[row : row + 1], cfg=cfg)
        np.testing.assert_allclose(latents_of(together)[row], latents_of(alone)[0], atol=1e-5)
        for name in ("nfe", "draft_forwards", "forward_rows"):
            assert getattr(together, name)[row] == getattr(alone, name)[0]
        for name in ("accepted", "drafted"):
            assert getattr(together.trace, name)[row] == getattr(alone.trace, name)[0]
        np.testing.assert_allclose(together.trace.commit_score[row], alone.trace.commit_score[0], atol=1e-4)
    if "exact" in spec and "k=1" not in spec:
        assert len(set(together.nfe)) > 1  # rows went on at their own pace


# --- counts ---


def test_calls_of_the_published_rounds_are_counted() -> None:
    """10 steps: the target alone at 0 and 1 (1 <= 10 * 0.15), then tests at steps 4, 8 and 9."""
    target, draft = pair(30, 2, 4)
    end = generate(target, "cspd:draft=d,k=4,steps=10", draft=draft, seeds=(1, 2), cfg=1.5)
    assert end.nfe == (5, 5)
    assert end.draft_forwards == (8, 8)
    assert end.forward_rows == (10, 10)
    assert [count > 0 for count in end.trace.drafted[0]] == [False, False, True, True, True]
    assert sum(end.trace.drafted[0]) + sum(len(step.positions) for step in end.trace.steps[0][:2]) == 30
    assert set(end.seconds) == {"backbone", "head", "draft backbone", "draft head"}
    assert end.deviation == ()
    assert generate(target, "cspd:draft=d,k=4,steps=10,prefill=1", draft=draft).draft_forwards == (0,)


def test_calls_of_the_exact_rounds_are_counted() -> None:
    """Each drafted group is a row of the target's single call; the draft equals the target, so all are accepted."""
    target, _ = pair(30, 2, 4)
    end = generate(target, "cspd:draft=d,k=4,steps=10,mode=exact", draft=target, seeds=(1, 2), cfg=1.5)
    assert end.nfe == (4, 4)  # two groups by the target alone, then 4 and 4
    assert end.draft_forwards == (8, 8)
    assert end.forward_rows == (20, 20)  # 2 + 8, twice each for guidance
    causal = replace(target, backbone=ToyBackbone(30, 2, causal=True))
    end = generate(causal, "cspd:draft=d,k=5,steps=30,mode=exact,prefill=0", draft=causal)
    assert (end.nfe, end.forward_rows, end.draft_forwards) == ((6,), (6,), (30,))


@pytest.mark.parametrize("cfg", [None, 2.0])
def test_a_causal_backbone_is_asked_once_for_all_groups(cfg: float | None) -> None:
    """With a causal backbone, a single row gives the states of all groups."""
    target, draft = pair(9, 2, 4)
    more, less = (replace(m.backbone, causal=True, weight=0.15) for m in (target, draft))
    target, draft = replace(target, backbone=more), replace(draft, backbone=less)
    spec = "cspd:draft=d,k=4,steps=9,mode=exact,prefill=0"
    once = generate(target, spec, draft=draft, cfg=cfg, **ROWS)  # type: ignore[arg-type]
    assert once.forward_rows == tuple(n * (2 if cfg else 1) for n in once.nfe)
    with patch.object(_cspd_exact, "group_states", _each_alone):
        apart = generate(target, spec, draft=draft, cfg=cfg, **ROWS)  # type: ignore[arg-type]
    np.testing.assert_allclose(latents_of(once), latents_of(apart), atol=1e-5)
    assert once.trace.accepted == apart.trace.accepted


def _each_alone(context: object, groups: list[object], latents: torch.Tensor) -> object:
    """`contexts` by a separate call for each group."""
    from pardec.models.continuous.contracts import States
    from pardec.samplers.continuous.contracts import ContinuousContext
    from pardec.samplers.continuous.methods.drafting_ahead import Group, raster_order

    assert isinstance(context, ContinuousContext)
    images, cond, places = context.images, [], []
    for group in groups:
        assert isinstance(group, Group)
        cond.append(context.states(images.known(group.start), group.wanted, group.scale, latents=latents))
        places.append(group.wanted.nonzero())
    rows, at = torch.cat(places).unbind(1)
    order = raster_order(rows, at, images.tokens)
    uncond = [each.uncond for each in cond if each.uncond is not None]
    scale = [each.scale for each in cond if each.scale is not None]
    whole = torch.cat([each.cond for each in cond])
    made = States(whole, torch.cat(uncond), torch.cat(scale)) if uncond else States(whole)
    return made[order], np.array([sum(int(g.stop[r] > g.start[r]) for g in groups) for r in range(len(images))])  # type: ignore[attr-defined]


def test_slack_accepts_more() -> None:
    target, draft = pair(12, 2, 6, curved=True)
    shares = []
    for slack in (1, 1.5, 20):
        end = generate(target, f"cspd:draft=d,mode=exact,prefill=0,slack={slack},k=2,steps=6", draft=draft, count=50)
        shares.append(sum(map(sum, end.trace.accepted)) / sum(map(sum, end.trace.drafted)))
    assert shares[0] < shares[1] < shares[2]


def test_distributions_that_are_no_numbers_end_in_an_error() -> None:
    target, draft = pair(4, 2, 3)
    broken = replace(draft, head=replace(draft.head, pull=float("nan")))  # type: ignore[type-var]
    with pytest.raises(ModelError, match="target or draft gives states that are not finite"):
        generate(target, "cspd:draft=d,mode=exact,prefill=0", draft=broken)


@pytest.mark.parametrize("mode", ["reference", "exact"])
def test_mar_drafts_for_mar(mode: str) -> None:
    """With the real networks and heads; every token is sampled, and none stays 0."""
    target, draft = mar(), mar(near=0.01)
    end = generate(target, f"cspd:draft=d,mode={mode},steps=8,k=3", draft=draft, cfg=2.0, **ROWS)  # type: ignore[arg-type]
    assert np.isfinite(latents_of(end)).all()
    assert (np.abs(latents_of(end)).sum(-1) > 0).all()
    assert (end.trace.commit_step >= 0).all()
