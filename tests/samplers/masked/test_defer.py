"""`defer`: commits nothing, and goes with stages that write the whole block."""

from __future__ import annotations

from functools import partial

from pardec.samplers.registry import resolve
from tests.reference import naive_uniform
from tests.reference.naive_uniform import Rule
from tests.samplers.masked.uniform_toys import VOCAB, predictions, uniform_toy
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import request, run


def test_the_methods_that_write_the_block_bring_it() -> None:
    for name in ("ancestral", "adaptive"):
        assert "defer" in [part.name for part in resolve(name).spec.parts]


def test_tokens_are_those_of_the_revise_stage_alone() -> None:
    model, row = uniform_toy(), [1, 2, *[VOCAB] * 6]
    for spec in ("defer+ancestral:steps=3", "ancestral:steps=3"):
        found = run(model, spec, request([row], [2], seeds=[5], temperature=1.0, block_length=6))
        expected = naive_uniform.decode(
            partial(predictions, model), [1, 2, *[None] * 6], 2, Rule("ancestral", 3, 1.0), 5, 6
        )
        assert found.tokens[0].tolist() == expected.tokens


test_what_is_refused = refused_specs(
    [
        ("defer", "defer commits nothing, and no stage writes the block"),
        ("defer+renoise", "defer commits nothing, and no stage writes the block"),
        ("defer+edit", "defer commits nothing, and no stage writes the block"),
        ("defer+ancestral+spacing", "spacing changes the choice of the select, which has no effect"),
    ]
)
