"""Blocks of masks that draft: distributions as in one pass over the text, cuts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.dflash import BlockState
from tests.grids import chequered
from tests.models.draft_modules.dflash_writer import MASK, write
from tests.reference.naive_dflash import NaiveDFlash
from tests.samplers import module_files
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, Pausing, apart, greedy, path, target
from tests.samplers.joint_distributions import WORLDS, measure

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {"seed": 5},
    "reduced": {"reduced": (3, 0, 4, 1)},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5},
    "second": {"selected": 3},
    "vanilla": {"markov": "vanilla", "confidence": "token"},
    "gated": {"markov": "gated", "reduced": (0, 1, 3, 4), "sample_from_anchor": False},
    "rnn": {"markov": "rnn", "confidence": "token"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random drafter of each kind. Few of its tokens are accepted, but of five some are."""
    where = tmp_path_factory.mktemp("dflash")
    for name, options in KINDS.items():
        write(where / name, dtype=torch.float32, **options)
    return {name: where / name for name in KINDS}


def spec(folder: Path, k: int = 4, more: str = "") -> str:
    return f'dflash:name="{folder}",k={k}{more}'


@pytest.mark.parametrize("name", KINDS)
def test_one_pass_drafts_all_tokens_of_a_round(name: str, folders: dict[str, Path]) -> None:
    done = run(target(), spec(folders[name], 15), RAGGED, NEW)
    assert rows(done) == greedy()
    drafted = [forwards <= nfe - 1 for forwards, nfe in zip(done.draft_forwards, done.nfe, strict=True)]
    assert all(drafted)
    assert max(map(max, done.trace.accepted)) <= 5 - (name in ("dflash", "reduced", "sliding", "second", "gated"))
    assert sum(map(sum, done.trace.accepted)) > 0


# --- laws against one pass over the whole text, by the plain module ---


@cache
def naive(folder: Path, name: str) -> NaiveDFlash:
    """The module of a folder as a plain module, in float64."""
    stack: Any = target().decoder
    tensors, config = write(folder, dtype=torch.float32, **KINDS[name])
    double = {key: each.double() if each.is_floating_point() else each for key, each in tensors.items()}
    return NaiveDFlash(double, config, stack.embed.weight.double(), stack.head.weight.double())


def states(text: list[int], taps: tuple[int, ...]) -> Tensor:
    """[L, S]: outputs of the target's layers over a whole text, in a forward without a cache."""
    plan = Plan.full(torch.tensor([text]), target().visible())
    found = target().forward(replace(plan, hidden=taps))
    return torch.cat([found.taps[layer] for layer in taps], -1)[0].double()


@contextmanager
def compared(plain: NaiveDFlash, name: str) -> Iterator[list[float]]:
    """Compares the distribution after each node with the plain module's."""
    errors: list[float] = []
    forward = BlockState.forward
    anchored = bool(KINDS[name].get("markov")) and KINDS[name].get("sample_from_anchor", True)
    taps = (0, 2, 3)

    @cache  # the nodes of a round share their text
    def block_after(*text: int) -> Tensor:
        with torch.inference_mode():
            context = states(list(text), taps)[:-1]
        return plain.block(context, text[-1], MASK, 5)[0 if anchored else 1 :]

    def expected(text: list[int], drafted: list[int]) -> Tensor:
        block = block_after(*text)
        if KINDS[name].get("selected"):
            logits = plain.chosen(block, [text[-1], *drafted])[-1]
        elif KINDS[name].get("markov"):
            logits = plain.walk(block, [text[-1], *drafted])[0][-1]
        else:
            logits = plain.logits(block[len(drafted)])
        if plain.ids is None:
            return logits
        return torch.full((5,), -torch.inf, dtype=torch.float64).index_copy(0, plain.ids, logits)

    def compared(self: BlockState, draft: Draft, nodes: Tensor) -> Tensor:
        said = forward(self, draft, nodes)
        for row in range(len(nodes)):
            for at, node in enumerate(nodes[row].tolist()):
                if node >= 0:
                    truth = expected(self.context.text.row(row).tolist(), path(draft, row, node))
                    some = truth.isfinite()
                    assert (said[row, at].isfinite() == some).all()
                    errors.append(apart(said[row, at][some], truth[some]))
        return said

    with patch.object(BlockState, "forward", compared):
        yield errors


@pytest.mark.parametrize(("name", "shape"), chequered(KINDS, SHAPES, count=4))
def test_every_distribution_is_that_of_one_pass_over_the_whole_text(
    name: str, shape: str, folders: dict[str, Path]
) -> None:
    """Holds only if the cache has K/V of accepted positions, and no others, at their positions."""
    plain = naive(folders[name], name)
    with compared(plain, name) as errors:
        run(target(), spec(folders[name], 4, f"+{shape}"), RAGGED, [7, 9, 4, 11])  # each node is compared by a forward
    assert len(errors) > 30
    assert max(errors) < 5e-5


def test_rows_that_draft_nothing_for_a_while_catch_up(folders: dict[str, Path]) -> None:
    made = replace(registry.resolve(spec(folders["rnn"]), "ar"), length=Pausing())
    with compared(naive(folders["rnn"], "rnn"), "rnn") as errors:
        assert rows(run(target(), made, RAGGED, NEW)) == greedy()
    assert max(errors) < 5e-5
    assert len(errors) > 20


@pytest.mark.parametrize("shape", ["", "+dyspec:nodes=6,children=3", "+template:widths=3-2-1+rrs"])
def test_draws_from_a_few_candidates_have_the_joint_distribution_of_the_target(shape: str) -> None:
    """DFlash 2's selector drafts three of five ids at each position, and other ids after other tokens."""

    def second(folder: Path, model: LanguageModel) -> Path:
        sizes = {"vocab": model.vocab_size, "width": model.width, "mask": model.vocab_size - 1, "taps": (0, 1)}
        write(folder, selected=3, block=4, dtype=torch.float32, **sizes)  # type: ignore[arg-type]
        return folder

    with patch.dict(module_files.WRITERS, dflash=second):
        for reading in measure(f"dflash:name=draft,k=3{shape}", WORLDS["5 tokens, length 4"], 4000):
            assert reading.z < 4, reading


# --- the drafter's own estimate ---


def test_controllers_are_told_what_the_confidence_head_says(folders: dict[str, Path]) -> None:
    """Cutting before the first token with a low estimate is the authors' rule; without a head the estimate is max q."""
    module: Any = load_draft_module(folders["rnn"], target())
    told: list[Tensor] = []
    estimate = type(module).estimate

    def said(self: Any, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        told.append(estimate(self, hidden, embedded))
        return told[-1]

    with patch.object(type(module), "estimate", said):
        done = run(target(), spec(folders["rnn"], 4, "+fallback:below=0.999"), RAGGED, NEW)
    assert rows(done) == greedy()
    assert max(float(each.max()) for each in told) < 0.999
    assert sum(map(sum, done.trace.accepted)) == 0
    for row in range(len(RAGGED)):  # each round then feeds the last token alone
        assert done.nfe[row] == NEW[row]
    whole = run(target(), spec(folders["rnn"], 4, "+fallback:below=0"), RAGGED, NEW)
    assert whole.trace.accepted == run(target(), spec(folders["rnn"], 4), RAGGED, NEW).trace.accepted


# --- what goes together ---


def test_specs_that_cannot_be(folders: dict[str, Path]) -> None:
    with pytest.raises(SpecError, match="dflash: name is missing"):
        registry.resolve("dflash:k=3", "ar")
    with pytest.raises(ModelError, match="reads layers 9"):
        run(target(), f'dflash:name="{folders["dflash"]}",taps=9', RAGGED, NEW)


def test_logits_that_are_not_finite_name_the_drafter(folders: dict[str, Path]) -> None:
    module: Any = load_draft_module(folders["dflash"], target())
    module.hidden_norm.data[0] = torch.inf
    with pytest.raises(ModelError, match="dflash gives logits that are not finite: its weight hidden_norm holds"):
        run(target(), spec(folders["dflash"]), RAGGED, NEW, draft_model=module)


def test_its_cost_is_what_it_reads(folders: dict[str, Path]) -> None:
    module: Any = load_draft_module(folders["dflash"], target())
    drafter = registry.resolve(spec(folders["dflash"]), "ar").draft
    own = sum(weight.numel() for weight in module.parameters()) + 5 * 16
    assert drafter.cost_ratio(target(), module) == pytest.approx(own / target().parameters)
    spark: Any = load_draft_module(folders["vanilla"], target())
    read = sum(weight.numel() for weight in spark.parameters()) - 5 * 16 - 5 * 6
    assert spark.parameters_read == read
    assert np.isclose(drafter.cost_ratio(target(), spark), read / target().parameters)
