"""The block stage: every rule against a naive version on recorded checkpoints, reductions, caches, refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from tests.reference import naive_blocks as naive
from tests.samplers.toys import BLOCK, FAMILIES, MASK, events, fill, names, prompts, request, same, toy

GOLDEN = Path(__file__).parents[2] / "golden"
NEW, SIZE = 21, 6


@lru_cache
def golden(name: str) -> pardec.Model:
    return pardec.load(GOLDEN / name / "checkpoint", device="cpu", dtype="float32")


def dsb(**settings: Any) -> Callable[[int, int, int], naive.Rule]:
    def make(*sizes: int) -> naive.Rule:
        rule = naive.Dsb(*sizes)
        rule.most = settings.get("most")
        return rule

    return make


def dcd(**settings: Any) -> Callable[[int, int, int], naive.Rule]:
    def make(*sizes: int) -> naive.Rule:
        rule = naive.Dcd(*sizes)
        rule.masks, rule.most = settings.get("masks"), settings.get("most")
        return rule

    return make


RULES: dict[str, Callable[[int, int, int], naive.Rule]] = {
    "dsb": dsb(),
    "dsb:most=4": dsb(most=4),
    "dcd": dcd(),
    "dcd:masks=3,most=5": dcd(masks=3, most=5),
    "adablock:tau=0.02,delimiters={ids}": lambda *sizes: naive.AdaBlock(*sizes, tau=0.02),
    "adablock:tau=0.9,delimiters={ids}": lambda *sizes: naive.AdaBlock(*sizes, tau=0.9),
    "multiblock": naive.MultiBlock,
    "multiblock:add=0.5,blocks=2": lambda *sizes: naive.MultiBlock(*sizes, add=0.5, blocks=2),
    "multiblock:add=0,blocks=3": lambda *sizes: naive.MultiBlock(*sizes, add=0.0, blocks=3),
    "slowfast:tau=0.05": lambda *sizes: naive.SlowFast(*sizes, tau=0.05),
    "slowfast:tau=0.1,steps=3,all=true": lambda *sizes: naive.SlowFast(*sizes, tau=0.1, steps=3, whole=True),
}


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_each_rule_is_its_naive_version_step_by_step(name: str, spec: str) -> None:
    model = golden(name)
    decoding = model.language_model.decoding_config
    vocab = model.language_model.vocab_size
    ids = frozenset(range(0, vocab, 3))
    spec = spec.replace("{ids}", "-".join(map(str, sorted(ids))))

    def predict(tokens: list[int]) -> list[tuple[int, float]]:
        logits = model.logits(torch.tensor([tokens]))[0].double()
        logits[:, decoding.mask_id] = -torch.inf
        best = logits.softmax(-1).max(-1)
        pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return pairs[:1] + pairs[:-1] if decoding.shift else pairs

    drawn = np.random.RandomState(3)
    given = [drawn.randint(3, vocab - 10, length).tolist() for length in (5, 9)]
    for tau in (0.05, 0.15):
        result = model.generate(
            input_ids=given, sampler=f"{spec}+threshold:tau={tau}", max_new_tokens=NEW, block_length=SIZE, stop_ids=[]
        )
        for row, prompt in enumerate(given):
            total = len(prompt) + NEW
            rule = RULES[spec_of(spec, ids)](len(prompt), total, SIZE)
            if isinstance(rule, naive.AdaBlock):
                rule.delimiters = ids
            tokens, when = naive.decode(predict, [*prompt, *[decoding.mask_id] * NEW], decoding.mask_id, rule, tau)
            assert result.sequences[row, :total].tolist() == tokens
            assert result.trace.commit_step[row, :total].tolist() == when


def spec_of(spec: str, ids: frozenset[int]) -> str:
    return spec.replace("-".join(map(str, sorted(ids))), "{ids}")


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "block", "vicinity:before=2,after=1,warmup=0"])
def test_one_block_at_once_is_the_grid(family: str, cache: str) -> None:
    if cache == "block" and family != "sdar":
        pytest.skip("for block-causal families")
    rest = f"threshold:tau=0.3@{cache}"
    both = [fill(toy(family, sharp=1.2), spec, prompts((5, 2)), 12) for spec in (rest, f"multiblock:blocks=1+{rest}")]
    for row in range(2):
        assert same(both[0], row, both[1], row)
    assert both[0].trace.fed == both[1].trace.fed


@pytest.mark.parametrize("cache", ["none", "dual:refresh=1", "block"])
def test_blocks_in_flight_change_nothing_but_order_in_a_block_causal_family(cache: str) -> None:
    """With an exact cache the tokens are those without one, whatever was in flight when K/V were written."""
    model, given = toy("sdar", sharp=1.2), prompts((5, 2, 7))
    spec = "multiblock:add=0.2+threshold:tau=0.3"
    plain, cached = fill(model, f"{spec}@none", given, 14), fill(model, f"{spec}@{cache}", given, 14)
    assert plain.tokens.tolist() == cached.tokens.tolist()
    assert plain.trace.commit_step.tolist() == cached.trace.commit_step.tolist()


@pytest.mark.parametrize("name", names("block"))
def test_a_row_alone_is_the_row_in_a_ragged_batch(name: str) -> None:
    lengths, new = (3, 6, 1, 5), (17, 6, 23, 2)
    for family, cache, temperature in (("llada", "dual", 0.0), ("dream", "prefix", 0.8), ("llada", "none", 0.8)):
        given = prompts(lengths)
        canvases = [[*prompt, *[MASK] * count] for prompt, count in zip(given, new, strict=True)]
        head = f"{name}:delimiters=1-2-3-4" if name == "adablock" else name
        spec = f"{head}+credit+threshold:tau=0.3@{cache}"
        model, more = toy(family, sharp=1.2), {"temperature": temperature}
        whole = events(model, spec, request(canvases, lengths, **more))[-1]
        for row in range(len(given)):
            alone = events(
                model, spec, request(canvases[row : row + 1], lengths[row : row + 1], seeds=[100 + row], **more)
            )
            end = len(canvases[row])
            assert alone[-1].tokens[0, :end].tolist() == whole.tokens[row, :end].tolist()
            assert alone[-1].trace.commit_step[0].tolist() == whole.trace.commit_step[row, :end].tolist()


@pytest.mark.parametrize("name", names("block"))
@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "vicinity", "dkv"])
@pytest.mark.parametrize(
    "rest", ["threshold:tau=0.3", "edit:tau=0.3+threshold:tau=0.3", "klass", "remdm+threshold:tau=0.3+eos"]
)
@pytest.mark.covers(2)
def test_each_goes_with_the_other_stages(name: str, cache: str, rest: str) -> None:
    head = f"{name}:delimiters=1-2-3-4" if name == "adablock" else name
    got = fill(toy("dream", sharp=1.2), f"{head}+{rest}@{cache}", prompts((3, 6)), 13)
    assert not (got.tokens == MASK).any()


@pytest.mark.parametrize("name", names("block"))
def test_what_fixes_blocks_refuses_it_by_name(name: str) -> None:
    head = f"{name}:delimiters=1" if name == "adablock" else name
    for other in ("fixed:steps=4", "wino"):
        with pytest.raises(SpecError, match=name):
            registry.resolve(f"{head}+{other}", "masked")
    for family in ("wedlm", "nemotron") if name == "multiblock" else ("sdar", "wedlm", "nemotron"):
        cache = {"wedlm": "window:slide=false", "nemotron": "causal", "sdar": "block"}[family]
        with pytest.raises(SpecError, match=name):
            fill(toy(family), f"{head}+threshold@{cache}", prompts((3,)), 8)
    with pytest.raises(SpecError, match="window moves the block itself"):
        registry.resolve(f"{head}+threshold@window", "masked")
    with pytest.raises(SpecError, match="two|one is allowed"):
        registry.resolve("dsb+dcd+threshold", "masked")


def test_adablock_needs_delimiters() -> None:
    with pytest.raises(SpecError, match="no token that is a newline"):
        fill(toy("llada"), "adablock+threshold", prompts((3,)), 8)
    with pytest.raises(SpecError, match="token ids joined by -"):
        registry.resolve("adablock:delimiters=a-b+threshold", "masked")


def test_a_sampler_without_a_block_stage_lays_windows_as_before() -> None:
    """What does not use it pays nothing: the window has the width of a block."""
    assert FAMILIES
    from pardec.samplers.masked.loop import MaskedLoop

    canvas = request([[1, 2, *[MASK] * 12]], [2])
    for spec, width in (("threshold", BLOCK), ("dsb+threshold", 12)):
        loop = MaskedLoop(toy("llada"), registry.resolve(spec, "masked"), canvas)
        assert loop.canvas.window.shape == (1, width)
