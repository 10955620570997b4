"""Methods as objects: joined by `|` they equal specs in text form, also for classes of other packages."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import cards as register_of
from pardec.samplers.masked.cache.dual import Dual
from pardec.samplers.masked.contracts import Canvas, Proposal
from pardec.samplers.masked.logits.credit import Credit
from pardec.samplers.masked.select.threshold import Threshold
from pardec.samplers.registry import Policy, cards, register, resolve
from pardec.samplers.spec import Spec, parse
from pardec.samplers.spec_values import build_method


def test_objects_are_the_spec_of_their_string() -> None:
    made = Credit() | Threshold(tau=0.8) | Dual(refresh=8)
    assert made == parse("credit+threshold:tau=0.8@dual:refresh=8")
    assert parse(str(made)) == made
    assert Dual(refresh=8) | (Credit() | Threshold(tau=0.8)) == made
    assert str(resolve(made).spec) == str(resolve("credit+threshold:tau=0.8@dual:refresh=8").spec)
    assert resolve(Threshold(tau=0.8)) == resolve("threshold:tau=0.8")
    assert pardec.sampler("credit") | pardec.sampler("threshold", tau=0.8) | pardec.sampler("dual", refresh=8) == made
    assert Threshold(tau=0.8).spec | pardec.sampler("dual") == parse("threshold:tau=0.8@dual")


@pytest.mark.parametrize("card", cards(), ids=lambda card: f"{card.family}-{card.name}")
def test_every_method_is_a_policy_and_comes_back_from_its_text(card: register_of.Card) -> None:
    assert issubclass(card.make, Policy)
    try:
        made = card.make()
    except (SpecError, TypeError):  # one that asks for something: a drafting model
        return
    spec = made.spec
    part = spec.cache or spec.parts[0]
    assert part.name == card.name
    assert (spec.cache is not None) == (card.stage == "cache")
    again = build_method(part, card.family)
    assert all(getattr(again, f.name) == getattr(made, f.name) for f in fields(made))


def test_what_cannot_be_joined_is_refused_with_the_way_out() -> None:
    with pytest.raises(SpecError, match="two caches"):
        Dual() | Dual(refresh=2)
    with pytest.raises(SpecError, match="dual is a cache and needs a sampler"):
        resolve(Dual())
    with pytest.raises(SpecError, match="got int"):
        Threshold() | 3  # type: ignore[operator]
    with pytest.raises(SpecError, match="did you mean 'threshold'"):
        pardec.sampler("treshold")
    with pytest.raises(SpecError, match="unknown parameter 'tua'"):
        pardec.sampler("threshold", tua=0.8)
    with pytest.raises(SpecError, match="tau must be at most 1"):
        pardec.sampler("threshold", tau=2)


def test_a_class_of_ones_own_is_taken_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_of, "_methods", dict(register_of._methods))

    @dataclass(frozen=True)
    class Mine:
        tau: float = 0.5

        def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
            return proposal.score >= self.tau

    with pytest.raises(SpecError, match="got Mine") as caught:
        resolve(Mine())  # type: ignore[call-overload]
    assert "registered classes" in str(caught.value.hint)
    register("mine_of_test", stage="select")(Mine)
    assert Mine(tau=0.25) | Dual() == parse("mine_of_test:tau=0.25@dual")  # type: ignore[operator]
    assert Dual() | Mine() == parse("mine_of_test@dual")  # type: ignore[operator]
    with pytest.raises(SpecError, match="got Heir"):
        resolve(type("Heir", (Mine,), {})())


def test_every_way_of_decoding_takes_objects_and_records_what_the_string_does() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    sampler, text = Threshold(tau=0.8) | Dual(), "threshold:tau=0.8@dual"
    arguments: dict[str, object] = {"max_new_tokens": 4}
    spec = model.generate("Tom has 3 cups.", sampler=text, max_new_tokens=4).spec
    assert model.generate("Tom has 3 cups.", sampler=sampler, max_new_tokens=4).spec == spec
    assert model.generate("Tom has 3 cups.", sampler=Threshold(), max_new_tokens=4).spec == str(
        model.generate("Tom has 3 cups.", sampler="threshold", max_new_tokens=4).spec
    )
    (row,) = model.serve_batch(["Tom has 3 cups."], sampler=sampler, max_new_tokens=4)
    assert row.result.spec == spec
    assert any(event for event in model.stream("Tom has 3 cups.", sampler=sampler, max_new_tokens=4))
    given: list[str | Spec | Policy] = [sampler, Threshold(tau=0.7), "threshold"]
    table = pardec.compare(model, "lists", given, limit=1, references=False, progress=False, **arguments)
    assert [row["sampler"] for row in table.rows] == [text, "threshold:tau=0.7", "threshold"]
    assert table.rows[0]["spec"] == spec
    with pytest.raises(SpecError, match="are the same sampler"):
        pardec.compare(model, "lists", [sampler, text], limit=1, progress=False)


@pytest.mark.parametrize("name", [5, None, Threshold])
def test_a_method_is_named_by_a_string(name: object) -> None:
    with pytest.raises(SpecError, match="a method must be named by a string"):
        pardec.sampler(name)  # type: ignore[arg-type]


def test_presets_are_listed() -> None:
    known = {preset.name: preset for preset in pardec.list_presets()}
    assert known["fast-dllm"].spec == "threshold:tau=0.9@dual"
    assert known["fast-dllm"].arguments["max_new_tokens"] == 256
