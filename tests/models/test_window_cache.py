"""Window caches compared with a plain version, one query and one key at a time."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pardec.models.caches import window_readers
from pardec.models.caches.window_cache import WindowCache
from pardec.models.caches.window_readers import Far
from pardec.models.errors import CacheError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from tests.reference.naive_window import naive
from tests.samplers.ar_toys import toy_ar

SINK, WINDOW, NODES = 2, 5, 4
TEXT = np.random.RandomState(5).randint(0, 7, 23).tolist()
TARGET = toy_ar(4, 7, layers=2, dtype=torch.float64)


def cache(model: LanguageModel = TARGET, *, rows: int = 1, far: Far | None = None, window: int = WINDOW) -> WindowCache:
    plain = model.decoder.new_cache(rows, SINK + window + NODES - 1)
    return WindowCache(plain, sink=SINK, window=window, nodes=NODES, reach=100, far=far)


def chain(start: int, stop: int) -> Plan:
    """Tokens start .. stop - 1 of TEXT."""
    order = torch.arange(start, stop)[None]
    whole = torch.tensor([stop])
    asked = Plan(torch.tensor([TEXT[start:stop]]), order, order, Visible.causal(), whole, order - start)
    return replace(asked, uniform=stop, span=(start, stop))


@pytest.mark.parametrize("far", [None, "offsets", "zero"])
def test_a_prompt_and_what_follows_are_those_of_the_plain_version(far: Far | None) -> None:
    """A prompt longer than the window, then pieces of a draft's size, some positions of which are fed a second time."""
    truth = naive(TARGET.decoder, TEXT, SINK, WINDOW, far)
    parts = [(0, 12), (12, 13), (13, 17), (15, 18), (18, 22), (22, 23)]
    for each, block in ((parts, 256), (parts[:1], 4), ([(0, 6), (6, 7), (7, 8)], 256)):  # and token by token past 7
        own = cache(far=far)
        with patch.object(window_readers, "_BLOCK", block):
            for start, stop in each:
                made = TARGET.decoder(chain(start, stop), own).logits()[0]
                torch.testing.assert_close(made.double(), truth[start:stop], rtol=0, atol=1e-4)
    last = TARGET.decoder(replace(chain(0, 12), narrow=True, want=torch.tensor([[11]])), cache(far=far)).logits()[0]
    torch.testing.assert_close(last.double(), truth[11:12], rtol=0, atol=1e-4)


@pytest.mark.parametrize("far", [None, "offsets"])
def test_rows_of_any_length_and_trees_are_those_of_rows_alone(far: Far | None) -> None:
    lengths, own = [12, 3, 9], cache(rows=3, far=far)
    tokens = torch.tensor([TEXT[:12]] * 3)
    for rows in ([0, 1], [2]):  # prompts in two groups
        some = torch.tensor(lengths)[rows]
        plan = Plan.full(tokens[rows, : int(some.max())], Visible.causal(), some)
        TARGET.decoder(replace(plan, rows=torch.tensor(rows)), own)
    some = torch.tensor([12, 9])
    plan = replace(Plan.full(tokens[:2], Visible.causal(), some), narrow=True, want=some[:, None] - 1)
    made = TARGET.decoder(plan, cache(rows=2, far=far)).logits()
    for row, length in enumerate(some.tolist()):
        truth = naive(TARGET.decoder, TEXT[:length], SINK, WINDOW, far)[-1]
        torch.testing.assert_close(made[row, 0].double(), truth, rtol=0, atol=1e-4)
    base, depth = torch.tensor(lengths), torch.tensor([0, 1, 1, 2])
    tree = Visible.tree(torch.tensor([-1, 0, 0, 1]), base)
    nodes = torch.tensor([[1, 2, 3, 4]] * 3)
    order = torch.arange(4).expand(3, -1)
    plan = Plan(nodes, base[:, None] + depth, base[:, None] + order, tree, base + 4, order)
    made = TARGET.decoder(plan, own).logits()
    for row, length in enumerate(lengths):
        for path in ((1, 2, 4), (1, 3)):
            truth = naive(TARGET.decoder, [*TEXT[:length], *path], SINK, WINDOW, far)[length:]
            found = made[row, [path_node - 1 for path_node in path]]
            torch.testing.assert_close(found.double(), truth, rtol=0, atol=1e-4)
    own.move(base[:, None] + torch.tensor([1, 3]), base[:, None] + torch.tensor([1, 2]))
    own.keep(torch.tensor([2, 0]))
    base = base[[2, 0]] + 3
    plan = Plan(nodes[:2, :1], base[:, None], base[:, None], Visible.causal(), base + 1, torch.zeros(2, 1).long())
    made = TARGET.decoder(plan, own).logits()
    for row, length in enumerate([9, 12]):
        truth = naive(TARGET.decoder, [*TEXT[:length], 1, 2, 4, 1], SINK, WINDOW, far)[-1]
        torch.testing.assert_close(made[row, 0].double(), truth, rtol=0, atol=1e-4)


def test_memory_is_constant_and_what_is_left_out_is_gone() -> None:
    """Prompt tokens between the sinks and the window are in no slot."""
    own = cache()
    TARGET.decoder(chain(0, 20), own)
    plain = TARGET.decoder.new_cache(1, 20)
    TARGET.decoder(chain(0, 20), plain)
    ring = own.capacity - SINK
    assert own.nbytes == cache().nbytes == sum(t.nbytes for t in (*own.k, *own.v))
    first = plain.k[0][0, :20]  # the first layer's, which depend on no attention
    stays = [*range(SINK), *range(20 - ring, 20)]
    held = own.k[0][0, : own.capacity]
    assert all(bool((held == first[slot]).flatten(1).all(1).any()) == (slot in stays) for slot in range(20))


def test_tokens_behind_others_that_do_not_fit_are_refused() -> None:
    own = cache()
    TARGET.decoder(chain(0, 12), own)
    with pytest.raises(CacheError, match="5 tokens after the prompt"):
        TARGET.decoder(chain(12, 17), own)
