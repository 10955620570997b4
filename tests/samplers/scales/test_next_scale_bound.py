"""Exact speculation over token maps, enumerated at toy size: the law is the large model's, the bound its forwards."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from pardec.models.scales.contracts import ScaleModel
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleContext, ScaleRequest
from pardec.samplers.scales.forward import ScaleForward
from pardec.samplers.scales.state import MapState
from pardec.samplers.stopwatch import Stopwatch
from scripts.next_scale_bound import kept, least_forwards
from tests.samplers.scale_toys import model as toy

V, SIDES, LABEL = 3, (1, 2), 2


def laws(model: ScaleModel) -> tuple[Tensor, Tensor]:
    """The distributions of the one code of map 0 [V], and of the codes of map 1 after each of them [V, 4, V]."""
    request = ScaleRequest((LABEL,) * V, Keyed(tuple(range(V))))
    maps = MapState(model, request)
    forward = ScaleForward(ScaleContext(model, request, maps, Stopwatch(model.device)), model)
    first = forward.next_logits()[0].double().softmax(-1)[0, 0]
    maps.commit(torch.arange(V)[:, None], torch.ones(V, 1), torch.zeros(()))
    return first, forward.next_logits()[0].double().softmax(-1)


def coupling(p: Tensor, q: Tensor) -> Tensor:
    """[V, V]: the probability of each code, given each drafted one."""
    stays, rest = (p / q).clamp(max=1), (p - q).clamp(min=0)
    return torch.diag(stays) + (1 - stays)[:, None] * rest / rest.sum().clamp(min=1e-300)


def test_speculation_over_maps_is_exact_and_takes_the_forwards_of_the_bound() -> None:
    shape = {"vocab": V}
    large, small = toy(*SIDES, **shape), toy(*SIDES, name="small", seed=9, layers=1, **shape)
    (p0, p1), (q0, q1) = laws(large), laws(small)
    first, law, forwards, whole = coupling(p0, q0), {}, 1.0, torch.zeros(V).double()
    maps = list(product(range(V), repeat=4))
    for drafted, code in product(range(V), repeat=2):
        reached = float(q0[drafted] * first[drafted, code])
        forwards += reached * (drafted != code)  # map 1 is then drafted again, after the code that replaced it
        each = [coupling(p1[code, at], q1[code, at]) for at in range(4)]
        after = [q1[code, at] @ each[at] for at in range(4)]
        whole[code] = math.prod(float((q1[code, at] * each[at].diag()).sum()) for at in range(4))
        for codes in maps:
            chance = reached * math.prod(float(after[at][one]) for at, one in enumerate(codes))
            law[code, codes] = law.get((code, codes), 0.0) + chance
    for (code, codes), chance in law.items():
        expected = float(p0[code]) * math.prod(float(p1[code, at, one]) for at, one in enumerate(codes))
        assert math.isclose(chance, expected, rel_tol=1e-9)
    found = kept(large, small, (LABEL,) * 400, None)
    assert math.isclose(least_forwards(found), forwards, rel_tol=1e-6)
    assert abs(found[1][1] - float(p0 @ whole)) < 0.05
