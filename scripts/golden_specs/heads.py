"""Heads of Medusa and Hydra: their logits, their trees, and every round of their decoding.

Medusa's nucleus acceptance is replayed here alone: paths that share a node sample the node's successor anew, so that a
drafted token has several chances. pardec's is `match` with `top_p`, which samples once per node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pardec
from golden_specs import TOLERANCE, Case, Replay, load, relative
from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.ops.distribution import filter_logits
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed
from pardec.samplers.speculative.contracts import (
    Acceptance,
    Draft,
    SpeculativeSampler,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from pardec.samplers.speculative.loop import VerifyLoop
from pardec.samplers.speculative.ops.trees import Template
from pardec.samplers.speculative.shape.paths import Paths
from pardec.samplers.speculative.shape.paths_tree import tree_text

_RANKS = 10  # candidates of each head that the authors compute


def _models(case: Case, folder: Path) -> tuple[pardec.Model, DraftModule]:
    p, checkpoints = case["params"], folder / "checkpoint"
    model = load(checkpoints / p["target"])
    return model, load_draft_module(checkpoints / p["heads"], model.language_model)


def _states(model: pardec.Model, ids: list[list[int]]) -> tuple[Tensor, Tensor]:
    """The states after the final norm [B, T, E], and the logits [B, T, V]."""
    engine = model.language_model
    hidden = engine.forward(Plan.full(torch.tensor(ids), engine.visible()))
    return hidden.normed(), hidden.logits()


def _far(found: dict[str, Tensor], case: Case, tensors: dict[str, Tensor]) -> str | None:
    for name, tensor in found.items():
        if (error := relative(tensor, tensors[case[name]])) > TOLERANCE:
            return f"{name} differs by {error:.1e}"
    return None


def _medusa_logits(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Every head after every token."""
    model, module = _models(case, folder)
    module_any: Any = module
    states, target = _states(model, case["input_ids"])
    if module.depth != case["params"]["heads_in_file"]:
        return f"{module.depth} heads, expected {case['params']['heads_in_file']}"
    heads = module_any.logits(states[0], range(module.depth)).transpose(0, 1)[:, None]
    return _far({"hidden_tensor": states, "target_logits_tensor": target, "head_logits_tensor": heads}, case, tensors)


def _hydra_logits(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Every head after every token that is followed by all tokens that the last head reads."""
    model, module = _models(case, folder)
    module_any: Any = module
    states, _ = _states(model, case["input_ids"])
    found, tokens = {"hidden_tensor": states}, torch.tensor(case["input_ids"])
    refined = states
    if module_any.prefix is not None:
        order = torch.full_like(tokens, -1)
        refined = module_any.prefix(replace(Plan.full(order, model.language_model.visible()), soft=states)).normed()
        found["prefix_tensor"] = refined
    rows = tensors[case["head_logits_tensor"]].shape[-2]
    x = [refined[0, :rows]] * len(module_any.heads)
    if module_any.grounded:
        x = [
            module_any.inputs(refined[0, :rows], tokens[0].unfold(0, head + 1, 1)[1 : rows + 1, None])[:, 0]
            for head in range(len(module_any.heads))
        ]
    inner = [head.states(each) for head, each in zip(module_any.heads, x, strict=True)]
    logits = [head.out(each) for head, each in zip(module_any.heads, inner, strict=True)]
    return _far(
        found | {"head_hidden_tensor": torch.stack(inner)[:, None], "head_logits_tensor": torch.stack(logits)[:, None]},
        case,
        tensors,
    )


def _buffers(case: Case, *_: object) -> str | None:
    """The tree's nodes, and its paths from the root to the leaves."""
    paths = Paths(tree=tree_text([tuple(path) for path in case["params"]["choices"]])).nodes
    tree = Template.of(paths)
    places = [0, *(1 + _RANKS * (len(path) - 1) + path[-1] for path in paths)]
    found = {"parents": tree.parents.tolist(), "depths": tree.depths.tolist(), "tree_indices": places}
    found["retrieve_indices"] = _leaves(found["parents"])
    return next(
        (f"{name} {value}, expected {case[name]}" for name, value in found.items() if value != case[name]), None
    )


def _leaves(parents: list[int]) -> list[list[int]]:
    """The nodes from the root to each leaf, the last leaf first, with -1 after shorter paths."""
    inner, rows = set(parents), []
    for node in reversed(range(1, len(parents))):
        if node not in inner:
            row = [node]
            while row[0]:
                row.insert(0, parents[row[0]])
            rows.append(row)
    longest = max(map(len, rows))
    return [row + [-1] * (longest - len(row)) for row in rows]


@dataclass(frozen=True)
class _Nucleus(Acceptance):
    """Medusa's nucleus acceptance on recorded uniforms, call by call."""

    case: Case
    uniforms: Iterator[list[float]]
    chosen: list[int] = field(default_factory=list)  # the path of each round, which is compared

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        p, tokens = self.case["params"], draft.ids[0]
        kept = filter_logits(distributions.raw, temperature=p["temperature"], top_k=None, top_p=p["top_p"])
        probs = kept[0].double().softmax(-1)
        path, count = torch.zeros(1, 1, dtype=torch.int64), 0
        if draft.width > 1:
            rows = torch.tensor(_leaves(draft.parent[0].tolist()))
            candidates = torch.where(rows < 0, 0, tokens[rows])  # after a path's end, token 0 at the last node
            sampled = _pick(probs[rows[:, :-1]].flatten(0, 1), next(self.uniforms)).view(len(rows), -1)
            counts = (candidates[:, 1:] == sampled).long().cumprod(1).sum(1)
            best = int(counts.argmax())
            self.chosen.append(best)
            path, count = rows[best : best + 1].clamp(min=0), int(counts[best])
        end = probs[path[0, count] if count < path.shape[1] else -1]
        last = [] if p["fast"] else next(self.uniforms, [])
        following = _pick(end[None], last) if last else end.argmax()[None]
        return Verdict(path, torch.tensor([count]), following)


def _pick(probs: Tensor, uniforms: list[float]) -> Tensor:
    """The first index whose cumulative probability is above the uniform of its row."""
    mass = probs.cumsum(-1)
    return (mass <= torch.tensor(uniforms, dtype=torch.float64)[:, None] * mass[:, -1:]).sum(-1)


def _rounds(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """The tree of every round, its accepted nodes, and the text."""
    p = case["params"]
    model, module = _models(case, folder)
    nucleus = p["temperature"] > 0 and p.get("sampling") == "nucleus"
    tree = tree_text([tuple(path) for path in p["choices"]])
    depth, rounds, prompt = max(map(len, p["choices"])), len(case["trees"]), case["prompt_ids"]
    accept = f"typical:epsilon={p['posterior_threshold']},delta={p['posterior_alpha']},reference=true"
    spec = f'{module.kind}:name="{module.path}",k={depth}+paths:tree={tree},top=true'
    sampler = registry.resolve(
        f"{spec}+{accept if p['temperature'] else 'greedy'}", "ar", sampling=p["temperature"] > 0
    )
    assert isinstance(sampler, SpeculativeSampler)
    if nucleus:
        sampler = replace(sampler, accept=_Nucleus(case, iter(case["uniform_rows"])))
    canvas = torch.tensor([*prompt, *[-1] * ((rounds + 1) * (depth + 1) + 1)])
    request = Request(
        (canvas,),
        (len(prompt),),
        block_length=1,
        source=Keyed((0,)),
        temperature=p["temperature"],
        draft_model=module,
    )
    loop = VerifyLoop(model.language_model, sampler, request)
    drafts: list[Draft] = []
    verify = loop.forward.verify
    loop.forward.verify = lambda draft: drafts.append(draft) or verify(draft)  # type: ignore[func-returns-value]
    for _ in range(rounds + 1):
        loop.round()
    for number, (draft, expected) in enumerate(zip(drafts, case["trees"], strict=True)):
        if draft.tokens[0].tolist() != expected:
            return f"round {number}: tree {draft.tokens[0].tolist()}, expected {expected}"
        if draft.parent[0].tolist() != case["parents"]:
            return f"round {number}: parents {draft.parent[0].tolist()}, expected {case['parents']}"
    if (accepted := loop.recorder.accepted[0][1:]) != case["accept_lengths"]:
        return f"accepted {accepted}, expected {case['accept_lengths']}"
    if (text := loop.text.row(0).tolist()[:-1]) != case["output_ids"]:  # they commit no token after the last round
        return f"text {text}, expected {case['output_ids']}"
    if isinstance(sampler.accept, _Nucleus) and sampler.accept.chosen != case["best_paths"]:
        return f"paths {sampler.accept.chosen}, expected {case['best_paths']}"
    return None if int(loop.text.nfe[0]) == case["nfe"] else f"{loop.text.nfe[0]} forwards, expected {case['nfe']}"


REPLAYS: dict[str, Replay] = {
    "medusa_forward": _medusa_logits,
    "medusa_buffers": _buffers,
    "medusa_generate": _rounds,
    "hydra_forward": _hydra_logits,
    "hydra_generate": _rounds,
}
