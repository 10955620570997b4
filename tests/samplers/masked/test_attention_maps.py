"""Attention maps for stages equal those of an eager forward over the same keys, in ragged batches, with any cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pardec
from pardec.samplers import registry
from pardec.samplers.masked.contracts import AttentionMaps, AttentionSpec, Canvas, Proposal, Select
from pardec.samplers.masked.loop import decode
from tests.reference.naive_attention import Eager
from tests.samplers.toys import BLOCK, FAMILIES, fill, prompts, request, toy

GOLDEN = Path(__file__).parents[2] / "golden"
LENGTHS, NEW = (5, 2, 9), (10, 7, 4)


@dataclass(frozen=True)
class Probe(Select):
    """Commits the most confident position, and records the attention that it reads."""

    wanted: AttentionSpec = field(default_factory=lambda: AttentionSpec((0, 1), every=True))
    read: list[tuple[Any, ...]] = field(default_factory=list)

    registered = ("probe", "select")

    def reads_attention(self, layers: int) -> AttentionSpec | None:
        return self.wanted

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        maps = proposal.evidence.attention
        assert maps is not None
        self.read.append((canvas.rows, canvas.tokens_host.copy(), canvas.window.clone(), maps))
        return torch.zeros_like(proposal.eligible)


def probed(model: Any, spec: str, probe: Probe, given: list[list[int]], new: Any, **options: Any) -> Any:
    mask = model.decoding_config.mask_id
    canvases = [row + [mask] * count for row, count in zip(given, new, strict=True)]
    options.setdefault("absolute", model.decoding_config.attention == "block-causal")
    asked = request(canvases, [len(row) for row in given], **options)
    *_, last = decode(model, replace(registry.resolve(spec), select=probe), asked)
    return last


def check(model: Any, spec: str, given: list[list[int]], new: Any, **options: Any) -> None:
    """Asserts that every map of every forward equals that of an eager forward over the same positions."""
    probe = Probe()
    got = probed(model, spec, probe, given, new, **options)
    block, bidirectional = options.get("block_length", BLOCK), model.decoding_config.attention == "bidirectional"
    total = [len(row) + count for row, count in zip(given, new, strict=True)]
    eager = [Eager(model, size, lambda p, s: bidirectional or s // block <= p // block) for size in total]
    for number, (rows, tokens, _, maps) in enumerate(probe.read):
        for at, row in enumerate(rows.tolist()):
            fed = list(got.trace.fed[row][number])
            _, expected = eager[row].forward(tokens[at].tolist(), fed)
            size = total[row]
            inside = [p for p in fed if p < size]
            assert sorted(maps.positions[at][maps.known[at]].tolist()) == fed
            for layer, weights in maps.layers.items():
                ours = _rows(maps, at, weights, inside)
                torch.testing.assert_close(ours[:, :size].double(), expected[layer], rtol=0, atol=1e-5)
                assert not ours[:, size:].any()
    assert len(probe.read) == max(got.nfe)


def _rows(maps: AttentionMaps, at: int, weights: Tensor, positions: list[int]) -> Tensor:
    where = {int(p): index for index, p in enumerate(maps.positions[at].tolist())}
    return weights[at, [where[p] for p in positions]]


@pytest.mark.parametrize(
    ("family", "cache"),
    [
        *((family, "none") for family in FAMILIES),
        *((family, cache) for family in ("llada", "dream") for cache in ("dual", "prefix:refresh=3", "dkv", "mlcache")),
        *((family, "block") for family in ("sdar", "shifted-sdar")),
    ],
)
def test_maps_are_those_of_an_eager_forward(family: str, cache: str) -> None:
    check(toy(family, sharp=1.2), f"sequential@{cache}", prompts(LENGTHS), NEW)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("spec", ["suffix:window=1,tail=0+sequential@none", "suffix:window=1+sequential@dual"])
def test_positions_that_are_left_out_are_in_no_map(family: str, spec: str) -> None:
    """The other positions have slots that differ from their numbers."""
    check(toy(family, sharp=1.2), spec, prompts(LENGTHS), NEW)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_maps_of_recorded_checkpoints(name: str) -> None:
    model = pardec.load(GOLDEN / name / "checkpoint", device="cpu", dtype="float32").language_model
    check(model, "sequential@prefix", prompts(LENGTHS, vocab=100), NEW, block_length=8)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", ["sequential@none", "edit+sequential@none", "wino:draft=0.3+sequential@none"])
@pytest.mark.covers(1)
def test_the_maps_of_a_block_are_rows_of_those_of_all_positions(family: str, spec: str) -> None:
    """Also with leave-one-out masks, whose queries have the same positions as the block."""
    model, given = toy(family, sharp=1.2), prompts(LENGTHS)
    whole, block = Probe(), Probe(AttentionSpec((1,)))
    for probe in (whole, block):
        probed(model, spec, probe, given, NEW)
    assert len(whole.read) == len(block.read)
    for (_, _, window, every), (_, _, _, own) in zip(whole.read, block.read, strict=True):
        rows = every.rows_at(window, every.layers[1])
        torch.testing.assert_close(own.rows_at(window, own.layers[1]), rows, rtol=0, atol=1e-6)
        among = own.among(window, own.layers[1])
        torch.testing.assert_close(among, rows.gather(2, window[:, None].expand(-1, window.shape[1], -1)))
        assert not rows[..., -1].any()
        assert set(own.layers) == {1}


def test_under_guidance_the_maps_are_those_of_the_half_with_the_condition() -> None:
    model, given = toy("llada", sharp=1.2), prompts(LENGTHS)
    probe = Probe()
    probed(model, "sequential@none", probe, given, NEW, cfg=1.5)
    rows, tokens, _, maps = probe.read[0]
    for row in rows.tolist():
        size = len(given[row]) + NEW[row]
        _, expected = Eager(model, size).forward(tokens[row].tolist(), range(size))
        torch.testing.assert_close(maps.layers[1][row, :size, :size].double(), expected[1], rtol=0, atol=1e-5)


def test_a_row_that_is_repeated_keeps_its_maps() -> None:
    """`lopa` uses for a hypothesis the attention of the forward before."""
    model, probe = toy("llada", sharp=1.2), Probe()
    probed(model, "lopa+threshold@none", probe, prompts(LENGTHS), NEW)
    assert any(len(set(rows.tolist())) < len(rows) for rows, *_ in probe.read)


def test_who_reads_none_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("attention was kept")

    monkeypatch.setattr("pardec.models.layers.layer_hooks.AttentionRecord.of", refuse)
    fill(toy(), "threshold@dual", prompts(LENGTHS), NEW)
