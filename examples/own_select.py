"""A select method of your own in twenty lines: it commits the surest positions, up to a limit on their summed doubt.

    python examples/own_select.py

Prints the text and the forwards of the new sampler beside those of `sequential`. Once the class is registered, its name
works in every spec: beside other stages, with any cache, and in `pardec.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

import pardec
from pardec.samplers.masked.contracts import Canvas, Proposal, Select
from pardec.samplers.registry import register


@register("doubt", stage="select")
@dataclass(frozen=True)
class Doubt(Select):
    budget: Annotated[float, "the most that 1 - confidence may add up to in one forward"] = 0.2

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:  # [B, W] bool
        order = proposal.score.argsort(dim=-1, descending=True, stable=True)
        doubt = (1 - proposal.score.gather(-1, order)).cumsum(-1)  # infinite where a position is not open
        chosen = (doubt <= self.budget).gather(-1, order.argsort(-1))
        return chosen & proposal.eligible  # the loop itself commits the surest one where this commits nothing


def main() -> None:
    model = pardec.load("tiny-dream")
    prompt = "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"
    for sampler in ("sequential+eos", "doubt+eos", "doubt:budget=0.01+eos@dual", Doubt(budget=0.1)):
        result = model.generate(prompt, sampler=sampler)
        assert result.text is not None
        print(f"{result.nfe[0]:3} forwards  {result.text[0]}  ({sampler})")


if __name__ == "__main__":
    main()
