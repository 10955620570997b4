"""EAGLE's drafters over their target: states and logits of every layout, and the authors' rounds, tree by tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from golden_specs import TOLERANCE, Case, Replay, load, relative
from pardec.models.caches.kv_cache import KVCache
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.plan import Hidden, Plan, Visible
from pardec.samplers.spec import parse
from pardec.samplers.speculative.accept.greedy import Greedy
from pardec.samplers.speculative.contracts import (
    Acceptance,
    Draft,
    SpeculativeSampler,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from pardec.samplers.speculative.draft.eagle import Eagle
from pardec.samplers.speculative.ops.verification import judge
from pardec.samplers.speculative.shape.beam import Beam
from pardec.samplers.speculative.shape.tree_growth import Tree

_SCORES = 1e-4  # tolerance of cumulative log-probabilities, which are recorded with five digits
_Path = tuple[int, ...]


class _Differs(Exception):
    """Raised at the first difference, after which nothing can be compared."""


class _Over(Exception):
    """The record has no more rounds."""


@lru_cache(maxsize=16)
def _module(folder: Path, target: str, draft: str) -> Any:
    return load_draft_module(folder / "checkpoint" / draft, load(folder / "checkpoint" / target).language_model)


def _close(what: str, found: Tensor, expected: Tensor) -> None:
    if (error := relative(found, expected)) > TOLERANCE:
        raise _Differs(f"{what} differ by {error:.1e}")


def _run(module: Any, tokens: Tensor, features: Tensor, cache: KVCache, start: int, visible: Tensor | None) -> Hidden:
    """The pairs of `tokens` [1, Q] at slots from `start` on; `visible` [Q, C] bool, else causal."""
    count = tokens.shape[1]
    slots = torch.arange(start, start + count)[None]
    order, lengths = torch.arange(count)[None], torch.tensor([start + count])
    pattern = Visible.causal() if visible is None else Visible.mask(visible[None])
    step = start // count if visible is not None else 0  # step of an unroll
    positions = slots if visible is None else order + step
    with torch.inference_mode():
        hidden: Hidden = module.run(Plan(tokens, positions, slots, pattern, lengths, order, soft=features), cache)
    return hidden


def _drafted(module: Any, logits: Tensor) -> Tensor:
    """The logits of the draft ids. Raises _Differs if other ids have logits."""
    if module.vocabulary is None:
        return logits
    inside = logits.index_select(-1, module.vocabulary)
    if int(logits.isfinite().sum()) != inside.numel():
        raise _Differs("ids outside of d2t have logits")
    return inside


def _forward(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """The target's states, the drafter over all of them, and one pair of its own state."""
    p, ids = case["params"], torch.tensor(case["input_ids"])
    module, target = _module(folder, p["target"], p["draft"]), load(folder / "checkpoint" / p["target"]).language_model
    plan = Plan.full(ids, Visible.causal())
    whole = target.forward(Plan(**{**_values(plan), "hidden": module.states.layers}))
    hidden = tensors[case["target_hidden_tensor"]]
    try:
        _close("the target's states", module.states.of(whole), hidden)
        _close("the target's logits", whole.logits(), tensors[case["target_logits_tensor"]])
        cache, count = module.new_cache(1, ids.shape[1]), ids.shape[1] - 1
        output = _run(module, ids[:, 1:], module.fuse(hidden)[:, :-1], cache, 0, None)
        _close("states", output.states, tensors[case["draft_hidden_tensor"]])
        _close("logits", _drafted(module, output.logits()), tensors[case["draft_logits_tensor"]])
        own = _run(module, torch.tensor([[case["own_token"]]]), output.states[:, -1:], cache, count, None)
        _close("states of its own pair", own.states, tensors[case["own_hidden_tensor"]])
        _close("logits of its own pair", _drafted(module, own.logits()), tensors[case["own_logits_tensor"]])
    except _Differs as difference:
        return str(difference)
    return None


def _values(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def _unroll(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Steps of a drafter that was given every true token; after the first step each query sees its own later keys.

    The recorded code adds 1 to the scores of those, and hides none of the others of these steps: attention's masks are
    floats there, and 0 and 1 are added as they are. The first step, which drafting begins with, hides as it should.
    """
    p, ids = case["params"], torch.tensor(case["input_ids"])
    module = _module(folder, p["target"], p["draft"])
    features = module.fuse(tensors[case["target_hidden_tensor"]])
    names = case.get("logits_tensors") or [case["logits_tensor"]]
    states = case.get("state_tensors") or [case["state_tensor"]]
    count, cache = ids.shape[1], module.new_cache(1, ids.shape[1] * len(names))
    first = torch.ones(count, count, dtype=torch.bool).tril()
    try:
        if "fused_tensor" in case:
            _close("fused states", features, tensors[case["fused_tensor"]])
        for step, (name, state) in enumerate(zip(names, states, strict=True)):
            visible = torch.cat([first, *[torch.eye(count, dtype=torch.bool)] * step], 1)
            with _added(visible, count) if step else nullcontext():
                output = _run(module, ids, features, cache, step * count, visible)
            expected = module._normed(tensors[state]) if module.form.norm_output else tensors[state]
            real = count - step
            _close(f"states of step {step}", output.states[:, :real], expected[:, :real])
            _close(f"logits of step {step}", _drafted(module, output.logits())[:, :real], tensors[name][:, :real])
            features = output.states
            ids = torch.nn.functional.pad(ids[:, 1:], (0, 1))
    except _Differs as difference:
        return str(difference)
    return None


@contextmanager
def _added(visible: Tensor, count: int) -> Iterator[None]:
    """Attention as recorded: after the first `count` keys, `visible` [Q, C] is added to the scores as 0 or 1."""
    bias = visible.float()
    bias[:, :count] = torch.zeros(count, count).masked_fill(~visible[:, :count], -torch.inf)

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
        k, v = (x[:, : bias.shape[1]].repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5 + bias
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

    with patch("pardec.models.layers.layer.attend", attend):
        yield


# --- trees and rounds ---


@dataclass
class _Tape:
    """A recorded run: which round is next, and what has been committed."""

    case: Case
    trees: list[Case]
    rounds: list[Case] | None  # uniforms of each round, where tokens are sampled
    number: int = -1
    tokens: list[int] = field(default_factory=list)
    candidates: dict[_Path, float] = field(default_factory=dict)  # the score of every node of the newest tree

    def differs(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            raise _Differs(f"round {self.number}: {what} {found}, expected {expected}")

    def compare(self, draft: Draft, tree: Case) -> None:
        """Paths, the order of siblings, and scores."""
        found = _paths(draft.tokens[0].tolist(), draft.parent[0].tolist())
        expected = _paths(tree["tokens"], tree["parents"])
        scores = dict(zip(expected, tree.get("scores", []), strict=False))  # unused trees have none
        orphans = [self._parents(path, scores.get(path)) for path in expected if path not in found]
        missing = [path for path in found if path not in expected]
        explained = all(orphans) and all(any(path in parents for parents in orphans) for path in missing)
        if not orphans or not explained:
            self.differs("tree", _children(found), _children(expected))
        known = [(self.candidates[path], scores[path]) for path in found if path in scores]
        if (off := max((abs(value - score) for value, score in known), default=0)) > _SCORES:
            raise _Differs(f"round {self.number}: scores differ by {off:.1e}")

    def _parents(self, path: _Path, score: float | None) -> set[_Path]:
        """The parents, of the same score, of candidates that may be the recorded node `path`.

        Where a child is certain, its score is rounded to its parent's, and the recorded code may draft the child
        without the parent: it then stands under the next node.
        """
        same = [
            (other[:-1], value)
            for other, value in self.candidates.items()
            if other[-1] == path[-1] and other[:-1] and (score is None or abs(value - score) < _SCORES)
        ]
        return {parent for parent, value in same if abs(self.candidates[parent] - value) < _SCORES}


def _paths(tokens: list[int], parents: list[int]) -> list[_Path]:
    paths: list[_Path] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def _children(paths: list[_Path]) -> dict[_Path, list[int]]:
    children: dict[_Path, list[int]] = {}
    for path in paths:
        children.setdefault(path[:-1], []).append(path[-1])
    return children


@dataclass(frozen=True)
class _Judged(Acceptance):
    """The exact acceptance on recorded uniforms; it first compares every tree with the record."""

    tape: _Tape

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        tape = self.tape
        tape.number += 1
        if tape.number:
            if tape.number > len(tape.trees):
                if unused := tape.case.get("last_tree_unused"):
                    tape.compare(draft, unused)
                raise _Over
            tape.compare(draft, tape.trees[tape.number - 1])
        if tape.rounds is None:
            verdict = Greedy().accept(draft, distributions, uniforms, None)
        else:
            verdict = judge(draft, distributions.probs, _Recorded(tape))
        if tape.number:
            count = int(verdict.count[0])
            if lengths := tape.case.get("accept_lengths"):
                tape.differs("accepted", count, lengths[tape.number - 1])
            tape.tokens += draft.tokens[0, verdict.path[0, : count + 1]].tolist()
        return verdict


class _Recorded:
    """A round's recorded uniforms, in the order of its tests."""

    def __init__(self, tape: _Tape) -> None:
        numbers = tape.rounds[tape.number - 1] if tape.number and tape.rounds else {}
        self.tests = iter(numbers.get("accept", []))
        self.token = numbers.get("token", tape.case.get("root_uniform"))

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        value = next(self.tests, torch.nan) if bool(tested[0]) else 1.0
        return torch.tensor([value], dtype=torch.float64)

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        shares = (weights / weights.sum(-1, keepdim=True)).cumsum(-1)
        return (shares > self.token).int().argmax(-1)

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        raise AssertionError("an acceptance draws no noise")


def _rounds(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Every round of `eagenerate`, or the first tree alone."""
    p = case["params"]
    whole = "trees" in case
    tape = _Tape(case, case["trees"] if whole else [case], case.get("round_uniforms"))
    name = str(folder / "checkpoint" / p["draft"])
    shape = Beam(beams=p["top_k"], nodes=p["total_token"] - 1, raw=True)
    drafter = Eagle(name=name, k=p["depth"] + 1)  # type: ignore[arg-type]
    sampler = SpeculativeSampler(parse("sequential"), "distribution", drafter, _Judged(tape), shape)
    model = load(folder / "checkpoint" / p["target"])
    options = {"temperature": p.get("temperature", 0.0), "top_k": p.get("top_k_sampling") or None}
    options["top_p"] = p.get("top_p_sampling") or None
    room = case.get("new_tokens", 0) + 2 * p["depth"] + 8  # levels are not cut to what is left
    cut = Tree.cut

    def noted(tree: Tree, count: int, draft_model: Any) -> tuple[Draft, np.ndarray]:
        paths = _paths(tree.tokens[0].tolist(), tree.parents[0].tolist())
        tape.candidates = dict(zip(paths, np.log(tree.values[0]).tolist(), strict=True))
        return cut(tree, count, draft_model)

    try:
        with patch.object(Tree, "cut", noted):
            model.generate(
                input_ids=[case["prompt_ids"]], sampler=sampler, max_new_tokens=room, stop_ids=[], seed=0, **options
            )
    except _Differs as difference:
        return str(difference)
    except _Over:
        pass
    if not whole:
        return None if tape.number == 2 else f"{tape.number} rounds"
    output = [*case["prompt_ids"], *tape.tokens]
    if output != case["output_ids"] or tape.number != case["nfe"]:
        return f"{output} in {tape.number}, expected {case['output_ids']} in {case['nfe']}"
    return None


REPLAYS: dict[str, Replay] = {
    "eagle_forward": _forward,
    "eagle3_forward": _forward,
    "speculators_eagle3_forward": _unroll,
    "specforge_eagle3_forward": _unroll,
    "eagle_tree": _rounds,
    "eagle3_tree": _rounds,
    "eagle_generate": _rounds,
    "eagle3_generate": _rounds,
}
