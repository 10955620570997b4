"""SJD's decoder over LlamaGen, with speculative Jacobi's window and with plain Jacobi's, round by round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from golden_specs import Case, Replay
from golden_specs.llamagen import LOOSE, apart, arguments, model_of
from pardec.samplers.spec import parse
from pardec.samplers.speculative.accept.greedy import follow
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import (
    Acceptance,
    DecodeContext,
    Draft,
    Drafter,
    RoundResult,
    SpeculativeSampler,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from pardec.samplers.speculative.draft.jacobi import Jacobi
from pardec.samplers.speculative.draft.jacobi_window import Iterate
from pardec.samplers.speculative.draft.sjd import Sjd, WindowState


class _Differs(Exception):
    """Raised at the first difference, after which nothing can be compared."""


@dataclass
class _Tape:
    """A recorded run, and the number of its next round."""

    case: Case
    tensors: dict[str, Tensor]
    now: Case = field(init=False)
    kept: list[int] = field(default_factory=list)  # tokens drawn after the last rejection
    number: int = -1

    def differs(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            raise _Differs(f"forward {self.number}: {what} {found}, expected {expected}")

    def far(self, what: str, found: Tensor, name: str) -> None:
        error = apart(found, self.tensors[name])
        if error > LOOSE:
            raise _Differs(f"forward {self.number}: {what} differ by {error:.1e}")

    def turn(self) -> None:
        """Moves to the next round."""
        self.number += 1
        self.differs("recorded rounds", len(self.case["trace"]), max(len(self.case["trace"]), self.number + 1))
        self.now = self.case["trace"][self.number]


@dataclass(frozen=True)
class _Taped(Drafter):
    """A window drafter of pardec, whose own randomly drawn tokens are replaced by the recorded ones.

    Checks how many tokens of a round are drawn from which distribution, and for `jacobi` the tokens too.
    """

    tape: _Tape
    drafter: Sjd | Jacobi

    def width(self, model: Any) -> int:
        return self.drafter.width(model)

    def start(self, context: DecodeContext) -> WindowState | Iterate:
        return self.drafter.start(context)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        tape = self.tape
        tape.turn()
        window = tape.now["window"]
        before = tape.kept
        # Outside of a given interval the authors decode token by token.
        made = self.drafter.propose(context, np.minimum(room, len(window) - 1), uniforms, state)
        known = min(int(state.known[0]), len(window) - 1)
        tape.differs("last token", int(made.tokens[0, 0]), window[0])
        tape.differs("draft of", made.width, len(window))
        tape.differs("tokens from the round before", known, min(len(before), len(window) - 1))
        tape.differs("recorded ones", window[1 : 1 + known], before[:known])
        if isinstance(self.drafter, Jacobi):
            tape.differs("picks", made.tokens[0, 1 : 1 + known].tolist(), before[:known])
        elif made.q is not None:
            assert made.is_point_mass is not None, "a draft has both distributions and point masses"
            tape.differs(
                "point masses", made.is_point_mass[0, 1:].tolist(), [at >= known for at in range(made.width - 1)]
            )
        return replace(made, tokens=torch.tensor([window]))

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        self.drafter.observe(outcome, context, state)
        if self.tape.number >= 0:
            self.tape.kept = self.tape.now["kept_drafts"]


@dataclass(frozen=True)
class _Judged(Acceptance):
    """The acceptance for this window, on recorded numbers."""

    tape: _Tape
    follows: ClassVar[bool] = True

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        tape = self.tape
        if tape.number < 0:  # the first token, after the condition
            first = tape.case["output_ids"][0]
            tape.differs("chance of the first token is 0", not distributions.probs[0, 0, first], False)
            return follow(draft, torch.tensor([[first]]))
        now = tape.now
        sampled = torch.tensor([now["sampled"]])
        possible = distributions.probs.gather(-1, sampled[..., None])[0, :, 0] > 0
        tape.differs("which drawn tokens are possible", possible.tolist(), [True] * len(possible))
        self._compare(draft, distributions)
        if tape.case["method"] == "jacobi_generate":
            verdict = follow(draft, sampled)
        else:
            verdict = Speculative().accept(draft, distributions, _Numbers(tape), None)
        accepted = [*draft.tokens[0, verdict.path[0, 1 : 1 + int(verdict.count[0])]].tolist(), int(verdict.next[0])]
        tape.differs("accepted", int(verdict.count[0]) + 1, now["matched"])
        tape.differs("accepted", accepted, now["accepted_tokens"])
        return verdict

    def _compare(self, draft: Draft, distributions: TargetDistributions) -> None:
        if "tensors" not in self.tape.now:
            return
        drafted, target = self.tape.now["tensors"]
        self.tape.far("the target's distributions", distributions.probs[0], target)
        point = torch.nn.functional.one_hot(draft.tokens[0], distributions.probs.shape[-1]).float()
        if draft.q is not None and draft.is_point_mass is not None:
            point = torch.where(draft.is_point_mass[0, :, None], point, draft.q[0])
        named = self.tape.tensors[drafted]
        point[0] = named[0]  # the committed token is not tested
        self.tape.far("the drafts' distributions", point, drafted)


@dataclass(frozen=True)
class _Numbers:
    """Recorded uniforms; a draw returns the recorded token, which must have positive probability."""

    tape: _Tape

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        return torch.tensor([self.tape.now["uniform_for_draft"][node]], dtype=torch.float64)

    def accepts(self, width: int) -> Tensor:
        return torch.tensor([[1.0, *self.tape.now["uniform_for_draft"][1:]]], dtype=torch.float64)

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        token = self.tape.now["accepted_tokens"][-1]
        self.tape.differs("whether the next token is possible", bool(weights[0, token] > 0), True)
        return torch.tensor([token])

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        raise AssertionError("an acceptance draws no noise")


def _window(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Every round of SJD's and Jacobi's window: inputs, distributions, accepted tokens, and the next inputs."""
    p, tape = case["params"], _Tape(case, tensors)
    model = model_of(folder, p["kind"])
    width = p["max_num_new_tokens"]
    drafter = Sjd(window=width, refresh="independent") if case["method"] == "sjd_generate" else Jacobi(window=width)
    sampler = SpeculativeSampler(parse("sequential"), "distribution", _Taped(tape, drafter), _Judged(tape))
    asked = arguments(case, tensors)
    try:
        result = model.generate(sampler=sampler, temperature=1.0, top_k=p["image_top_k"] or None, seed=0, **asked)
    except _Differs as difference:
        return str(difference)
    if result.tokens != [case["output_ids"]] or result.nfe != [case["nfe"]]:
        return f"codes {result.tokens} in {result.nfe}, expected {case['output_ids']} in {case['nfe']}"
    if p["image_top_k"] == 1:
        plain = model.generate(sampler="sequential", **asked).tokens
        return None if plain == result.tokens else f"with k=1 codes {result.tokens}, greedy ones are {plain}"
    return None


REPLAYS: dict[str, Replay] = {"sjd_generate": _window, "jacobi_generate": _window}
