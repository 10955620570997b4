"""A bfloat16 model with C kernels is as near to the same weights in float32 as with PyTorch's definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pardec.models.kernels.attention import attention_pattern
from pardec.models.kernels.choice import VARIABLE
from pardec.models.kernels.ops import REFERENCE, C, choose_ops
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids, model

CPU = torch.device("cpu")
PROMPT, VOCAB = 70, 512
PARENTS = torch.tensor([-1, 0, 0, 1, 1, 2, 3, 5])
DEPTHS = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3])
NODES = len(PARENTS)


def llama(dtype: torch.dtype) -> LanguageModel:
    """A model with SmolLM2's heads and width, and fewer layers; float32 weights are the bfloat16 ones."""
    shape = {"width": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "mlp_width": 1536, "vocab": VOCAB}
    made = model(dtype=torch.bfloat16, **shape)
    for weight in made.decoder.parameters():
        if weight.dim() == 2:  # of unit variance, so that softmax is not a choice of one slot
            weight.data *= 5 * weight.shape[1] ** -0.5
    made.decoder.to(dtype)
    made.dtype = dtype
    return made


def logits(of: LanguageModel, shape: str) -> Tensor:
    """Logits after two prompts: of one token, of a draft tree, or of a draft tree after prompts of unequal length."""
    ends = torch.tensor([PROMPT, PROMPT - 20 if shape == "ragged" else PROMPT])
    tokens = ids(2, PROMPT + NODES)
    cache = of.new_cache(2, PROMPT + NODES)
    of.forward(Plan.full(tokens[:, :PROMPT], of.visible(), ends if shape == "ragged" else None), cache)
    if shape == "token":
        at = torch.full((2, 1), PROMPT)
        plan = ask(tokens[:, -1:], at, Visible.causal(), ends + 1, uniform=PROMPT + 1, span=(PROMPT, PROMPT + 1))
    else:
        known = {} if shape == "ragged" else {"uniform": PROMPT + NODES}
        slots = ends[:, None] + torch.arange(NODES)
        tree = Visible.tree(PARENTS, ends)
        plan = ask(tokens[:, -NODES:], ends[:, None] + DEPTHS, tree, ends + NODES, slots=slots, **known)
    pattern = attention_pattern(plan, extent=cache.extent(plan), dtype=of.dtype, device=CPU)
    in_c = pattern.backend == "c" or pattern.last is not None
    assert in_c == (choose_ops(CPU, of.dtype) is C)
    return of.forward(plan, cache).logits()


@pytest.mark.parametrize("shape", ["token", "tree", "ragged"])
@torch.no_grad()
def test_a_model_is_as_near_by_kernels_in_c_as_by_definitions(in_c, monkeypatch, shape):
    short = llama(torch.bfloat16)
    found = logits(short, shape).double()
    monkeypatch.setenv(VARIABLE, "reference")
    assert choose_ops(CPU, torch.bfloat16) is REFERENCE
    exact, reference = logits(llama(torch.float32), shape).double(), logits(short, shape).double()
    off, may, size = ((each.square().mean().sqrt()) for each in (found - exact, reference - exact, exact))
    assert 0 < off <= 1.2 * may < 0.05 * size
    assert (found - reference).square().mean().sqrt() <= 2 * may
