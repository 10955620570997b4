"""Recorded acceptances: a draft, the distributions after it, the uniforms, and the accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.samplers.continuous.methods.cspd import TRIES, LastTransition, last_accepted, log_ratio, share
from pardec.samplers.speculative.accept.code_features import CodeFeatures, nearest
from pardec.samplers.speculative.accept.greedy import Greedy
from pardec.samplers.speculative.accept.gsd import Grouped
from pardec.samplers.speculative.accept.lantern import Lantern
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.accept.typical import Typical
from pardec.samplers.speculative.contracts import Acceptance, Draft, TargetDistributions

Case = dict[str, Any]

_CLOSE = 1e-5  # tolerance of probabilities
_LEAST = 1e-12  # smaller probabilities are not compared by their ratio


class Indexed:
    """Uniforms that were recorded for every node, [B, T]."""

    def __init__(self, uniforms: Tensor) -> None:
        self.uniforms, self.left = uniforms.double(), Tensor()

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        return self.uniforms[:, node]

    def accepts(self, width: int) -> Tensor:
        return self.uniforms[:, :width]

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        """Stores the distribution of the next token, which is recorded; its token is not."""
        self.left = weights / weights.sum(-1, keepdim=True)
        return weights.argmax(-1)

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        raise NotImplementedError("the recorded rules draw no token before their tests")


class Consumed(Indexed):
    """Uniforms of one row in the order of its tests; `skips` uniforms before a node's went to repeated siblings."""

    def __init__(self, uniforms: Sequence[float], skips: Sequence[int]) -> None:
        super().__init__(torch.zeros(1, 0))
        self.order, self.skips, self.used = list(uniforms), skips, 0

    accepts = None  # type: ignore[assignment]  # which number a node gets depends on the tests before it

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        self.used += self.skips[node] + 1
        known = self.used <= len(self.order)  # more tests than were recorded are a difference, reported at the end
        return torch.tensor([self.order[self.used - 1] if known else torch.nan], dtype=torch.float64)


class Tree:
    """Candidate paths merged into a tree: equal tokens after one node, with the same logits, are one node."""

    def __init__(self, root: tuple[int, list[float]], paths: Sequence[Sequence[tuple[int, list[float]]]]) -> None:
        self.tokens, self.parents, self.depths, self.logits = [root[0]], [-1], [0], [root[1]]
        self.members: list[list[int]] = [[]]  # per node: the paths through it
        nodes: dict[tuple[int, int, tuple[float, ...]], int] = {}
        for number, path in enumerate(paths):
            at = 0
            for token, logits in path:
                key = (at, token, tuple(logits))
                if key not in nodes:
                    nodes[key] = len(self.tokens)
                    self.tokens.append(token)
                    self.parents.append(at)
                    self.depths.append(self.depths[at] + 1)
                    self.logits.append(logits)
                    self.members.append([])
                at = nodes[key]
                self.members[at].append(number)

    @property
    def draft(self) -> Draft:
        at = torch.tensor(self.parents), torch.tensor(self.depths)
        size = np.array([len(self.tokens)])
        return Draft(torch.tensor([self.tokens]), size, np.zeros(1, dtype=np.int64), *at, levels=max(self.depths))

    def distributions(self, *, temperature: float = 1.0) -> TargetDistributions:
        raw = torch.tensor([self.logits])
        return TargetDistributions(raw, raw / temperature if temperature else raw, greedy=not temperature)

    def skips(self) -> list[int]:
        """Per node: the uniforms that were spent on repeated rejected siblings between it and the previous node."""
        found = []
        for node, parent in enumerate(self.parents):
            before = [self.members[i][0] for i in range(1, node) if self.parents[i] == parent]
            alive = range(10**6) if parent < 0 else self.members[parent] or range(10**6)
            last = max(before, default=-1)
            found.append(sum(last < path < self.members[node][0] for path in alive) if node and before else 0)
        return found


def _candidates(case: Case, pad: int | None = None) -> Tree:
    paths, logits = case["candidates"], case["logits"]
    lengths = [path.index(pad) if pad in path else len(path) for path in paths]
    # A path that is the beginning of another one adds nothing to it, and its last logits may be those of padding.
    ends = [path[:length] for path, length in zip(paths, lengths, strict=True)]
    alone = [not any(end == other[: len(end)] and len(end) < len(other) for other in ends) for end in ends]
    kept = [list(zip(end, rows, strict=False)) for end, rows, own in zip(ends, logits, alone, strict=True) if own]
    return Tree(kept[0][0], [path[1:] for path in kept])


def _taken(tree: Tree, made: Any) -> list[int]:
    return [tree.tokens[node] for node in made.path[0, 1 : int(made.count) + 1].tolist()]


def _differs(name: str, found: Any, expected: Any) -> str | None:
    return None if found == expected else f"{name} {found}, expected {expected}"


def _far(found: Tensor, expected: Sequence[float]) -> str | None:
    off = float((found - torch.tensor(expected)).abs().max())
    return f"the distribution of the next token differs by {off:.1e}" if off > _CLOSE else None


def _best(case: Case) -> list[int]:
    tokens: list[int] = case["candidates"][case["best_candidate"]][1 : case["accept_length"] + 1]
    return tokens


def jacobi_prefix_match(case: Case, *_: object) -> str | None:
    """Greedy Jacobi: the converged part is the chain's longest prefix that equals the argmax."""
    tokens, following = torch.tensor(case["input_ids"]), torch.tensor(case["next_tokens"])
    vocab = int(torch.maximum(tokens, following).max()) + 1
    logits = torch.nn.functional.one_hot(following, vocab).float()
    draft = Draft(tokens, np.full(len(tokens), tokens.shape[1]), np.zeros(len(tokens), dtype=np.int64))
    made = Greedy().accept(draft, TargetDistributions(logits, logits, greedy=True), Indexed(torch.zeros(0)), None)
    return _differs("first misaligned", (made.count + 1).tolist(), case["first_misaligned"])


def eagle_greedy(case: Case, *_: object) -> str | None:
    """The longest greedy path of a tree."""
    tree = _candidates(case, pad=-1)
    made = Greedy().accept(tree.draft, tree.distributions(temperature=0), Indexed(torch.zeros(0)), None)
    likeliest = int(np.argmax(case["sample"]))
    return _differs("accepted", _taken(tree, made), _best(case)) or _differs("next", int(made.next), likeliest)


def eagle_sampling(case: Case, *_: object) -> str | None:
    """Point masses tested sibling by sibling, and the residual distribution."""
    tree = _candidates(case, pad=-1)
    uniforms = Consumed(case["uniforms_consumed"], [0] * len(tree.tokens))
    made = Speculative().accept(tree.draft, tree.distributions(), uniforms, None)
    found = _differs("accepted", _taken(tree, made), _best(case))
    return found or _differs("uniforms", uniforms.used, len(uniforms.order)) or _far(uniforms.left[0], case["sample"])


def medusa_typical(case: Case, *_: object) -> str | None:
    """Typical acceptance as published."""
    p, tree = case["params"], _candidates(case)
    rule = Typical(epsilon=p["posterior_threshold"], delta=p["posterior_alpha"], reference=True)
    made = rule.accept(tree.draft, tree.distributions(temperature=p["temperature"]), Indexed(torch.zeros(0)), None)
    return _differs("accepted", _taken(tree, made), _best(case))


def _guesses(case: Case, root: list[float]) -> Tree:
    size = case["params"]["GUESS_SIZE"]
    nodes = list(zip(case["guess_tokens"], case["guess_logits"], strict=True))
    return Tree((0, root), [nodes[start : start + size] for start in range(0, len(nodes), size)])


def lookahead_greedy(case: Case, *_: object) -> str | None:
    """The guess that follows greedy decoding furthest; the reference adds no bonus token to a full match."""
    vocab = len(case["guess_logits"][0])
    tree = _guesses(case, np.eye(vocab)[case["first_guess"]].tolist())
    made = Greedy().accept(tree.draft, tree.distributions(temperature=0), Indexed(torch.zeros(0)), None)
    emitted = [*_taken(tree, made), int(made.next)]
    return _differs("tokens", emitted[: case["params"]["GUESS_SIZE"]], case["hits"][: case["max_hit"] + 1])


def lookahead_sample(case: Case, *_: object) -> str | None:
    """Guesses as point masses; the reference spends a uniform on each repeat, and gives full matches no bonus token."""
    size = case["params"]["GUESS_SIZE"]
    tree = _guesses(case, case["next_logits"])
    uniforms = Consumed(case["uniforms_consumed"], tree.skips())
    taken = _taken(tree, Speculative().accept(tree.draft, tree.distributions(), uniforms, None))
    if len(taken) == size:
        return _differs("tokens", taken, case["hits"])
    found = _differs("tokens", taken, case["hits"][: case["max_hit"]])
    return found or _far(uniforms.left[0], case["final_probs"])


def sjd(case: Case, *_: object) -> str | None:
    """A window of drafts with the distributions that they were drawn from."""
    p = torch.tensor(case["advanced_prob"])
    return _window(case, Speculative(), TargetDistributions(p.log(), p.log(), greedy=False), None)


def gsd(case: Case, *_: object) -> str | None:
    """`sjd` by groups; ranks are those of the logits before filters."""
    p, raw = torch.tensor(case["advanced_prob"]), torch.tensor(case["advanced_logits"])
    rule = Grouped(group=2 * case["window"], prob=case["p_thr"], dist=case["d_thr"], mode="reference")
    return _window(
        case, rule, TargetDistributions(raw, p.log(), greedy=False), CodeFeatures(torch.tensor(case["embedding"]))
    )


def _window(case: Case, rule: Acceptance, distributions: TargetDistributions, state: CodeFeatures | None) -> str | None:
    tokens, q = torch.tensor(case["draft_tokens"]), torch.tensor(case["draft_prob"])
    uniforms = torch.tensor(case["uniforms"]).gather(-1, tokens[..., None])[..., 0]
    draft = Draft(tokens, np.full(len(tokens), tokens.shape[1]), np.zeros(len(tokens), dtype=np.int64), q=q)
    uniforms = Indexed(uniforms)
    made = rule.accept(draft, distributions, uniforms, state)
    if found := _differs("first misaligned", (made.count + 1).tolist(), case["first_misaligned"]):
        return found
    for row, again in enumerate(case["resample"]):
        expected = case["advanced_prob"][row][-1] if again is None else again["residual_probs"]
        if found := _far(uniforms.left[row], (np.array(expected) / np.sum(expected)).tolist()):
            return found
    return None


def _lantern(case: Case) -> tuple[Lantern, CodeFeatures]:
    """Builds the rule with newly searched neighbours, whose recorded number is the same."""
    p, codebook = case["params"], torch.tensor(case["codebook"])
    table = nearest(codebook, len(codebook) - 1)
    recorded = torch.tensor(case["nearest"])
    if not torch.equal(table[:, : recorded.shape[1]].long(), recorded):
        raise ValueError("the nearest codes differ from the recorded ones")
    bound: dict[str, float] = {"ratio" if p["lantern_delta"] > 1 else "delta": p["lantern_delta"]}
    return Lantern(k=p["lantern_k"] if p["lantern"] else 0, mode="reference", **bound), CodeFeatures(table)


def lantern_dyn(case: Case, *_: object) -> str | None:
    """Point masses that borrow probability from their neighbours; a rejected one removes them as well."""
    rule, looks = _lantern(case)
    tree = _candidates(case, pad=-1)
    return _relaxed(case, tree, tree.draft, rule, looks)


def lantern_static(case: Case, *_: object) -> str | None:
    """Draws from the drafter's distributions without earlier siblings, with borrowed probability."""
    rule, looks = _lantern(case)
    tree = _candidates(case, pad=-1)
    q = torch.zeros(1, len(tree.tokens), len(case["codebook"]))
    for node in range(1, len(tree.tokens)):
        path, depth = tree.members[node][0], tree.depths[node]
        distribution = torch.tensor(case["draft_probs"][depth - 1][case["p_indices"][path][depth]])
        distribution[[case["tree_candidates"][0][at] for at in case["b_indices"][path][depth]]] = 0
        q[0, node] = distribution / distribution.sum()
        if abs(float(q[0, node, tree.tokens[node]]) - case["candidates_prob"][path][depth]) > _CLOSE:
            return "the draft's distribution differs"
    return _relaxed(case, tree, replace(tree.draft, q=q), rule, looks)


def _relaxed(case: Case, tree: Tree, draft: Draft, rule: Lantern, looks: CodeFeatures) -> str | None:
    uniforms = Consumed(case["uniforms_consumed"], [0] * len(tree.tokens))
    made = rule.accept(draft, tree.distributions(), uniforms, looks)
    found = _differs("accepted", _taken(tree, made), _best(case))
    return found or _differs("uniforms", uniforms.used, len(uniforms.order)) or _far(uniforms.left[0], case["sample"])


def lantern_greedy(case: Case, *_: object) -> str | None:
    """The longest path of tokens that are the likeliest with their borrowed probability."""
    rule, looks = _lantern(case)
    tree = _candidates(case, pad=-1)
    uniforms = Indexed(torch.full((1, len(tree.tokens)), 0.5))
    made = rule.accept(tree.draft, tree.distributions(temperature=0), uniforms, looks)
    likeliest = int(np.argmax(case["sample"]))
    return _differs("accepted", _taken(tree, made), _best(case)) or _differs("next", int(made.next), likeliest)


def cspd(case: Case, *_: object) -> str | None:
    """Vectors tested by the widened ratio of their last transitions, and the replacements of rejected ones."""
    target, other = (
        LastTransition(
            torch.tensor(case[f"{who}_mean"]),
            torch.tensor(case[f"{who}_std"]).log(),
            torch.tensor(case[f"{who}_log_var"]),
        )
        for who in ("target", "draft")
    )
    x, uniforms = torch.tensor(case["x"]), torch.tensor(case["accept_uniforms"])
    uniform = log_ratio(x, target, other, tau=case["params"]["temperature"]).exp()
    if not torch.allclose(uniform, _numbers(case["accept_prob"]), rtol=_CLOSE, atol=_LEAST):
        return f"acceptance {uniform.tolist()}, expected {case['accept_prob']}"
    for points, shares in zip(case["probe_points"], case["subtracted_ratio"], strict=True):
        found, expected = share(log_ratio(torch.tensor(points), target, other)), _numbers(shares)
        if not torch.allclose(found[~expected.isnan()], expected[~expected.isnan()], rtol=0, atol=_CLOSE):
            return f"share of the target {found.tolist()}, expected {shares}"
    stands = uniform > uniforms
    made = x
    if not bool(stands.all()):
        normals = torch.tensor(case["rejection_normals"])
        proposals = target.mean + target.log_deviation.exp() * normals
        taken = share(log_ratio(proposals, target, other)) > torch.tensor(case["rejection_uniforms"])
        if len(taken) < TRIES and not bool(taken.any(0).all() and (taken.sum(0)[taken[-1]] == 1).any()):
            return "the tries end elsewhere"
        made = torch.where(stands[:, None], x, last_accepted(proposals, taken))
    elif case["rejection_normals"]:
        return "nothing is rejected, and tries were recorded"
    off = float((made - torch.tensor(case["output"])).abs().max())
    return f"the output differs by {off:.1e}" if off > _CLOSE else None


def _numbers(found: Sequence[float | None]) -> Tensor:
    return torch.tensor([np.nan if value is None else value for value in found], dtype=torch.float64)


PURE = {
    "cspd": cspd,
    "eagle_greedy": eagle_greedy,
    "eagle_typical_sampling": eagle_sampling,
    "gsd": gsd,
    "jacobi_prefix_match": jacobi_prefix_match,
    "lantern_dyn": lantern_dyn,
    "lantern_greedy": lantern_greedy,
    "lantern_static": lantern_static,
    "lookahead_greedy": lookahead_greedy,
    "lookahead_sample": lookahead_sample,
    "medusa_typical": medusa_typical,
    "sjd": sjd,
}
