from __future__ import annotations

import torch
from accelerate import cpu_offload

from pardec.models.plan import Plan
from tests.models.toys import ids, model


def test_the_stack_runs_under_the_hooks_of_accelerate():
    toy, hooked = model("bidirectional"), model("bidirectional")
    cpu_offload(hooked.decoder, execution_device=torch.device("cpu"))  # every part's weights come and go
    hooked.decoder.placement = (torch.device("cpu"),) * hooked.layers
    hooked.decoder.embed_device = torch.device("cpu")
    assert hooked.decoder.layers[0].qkv_weight.device.type == "meta"
    plan = Plan.full(ids(2, 7), toy.visible(), torch.tensor([7, 3]))
    found = hooked.forward(plan, hooked.new_cache(2, 8)).logits()
    torch.testing.assert_close(found, toy.forward(plan, toy.new_cache(2, 8)).logits())
    assert found.device.type == "cpu"


def test_layers_on_different_devices_get_the_plan_where_they_are():
    toy, spread = model("causal"), model("causal")
    other = torch.device("cpu", 0)  # compares as another device than "cpu"
    spread.decoder.placement = (torch.device("cpu"), other, torch.device("cpu"))
    prompt, more = (
        Plan.full(ids(2, 5), toy.visible(), torch.tensor([5, 2])),
        Plan.full(ids(2, 7, seed=1), toy.visible()),
    )
    caches = toy.new_cache(2, 8), spread.new_cache(2, 8)
    for plan in (prompt, more):
        found = spread.forward(plan, caches[1]).logits()
        torch.testing.assert_close(found, toy.forward(plan, caches[0]).logits())
