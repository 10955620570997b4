"""Registering methods: by decorator, at a prompt, from other packages; errors for wrong registrations."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import cards, registry, renamed
from pardec.samplers.masked.contracts import Select
from pardec.samplers.masked.select.threshold import Threshold
from pardec.samplers.registry import Policy, register, resolve
from pardec.samplers.speculative.contracts import Drafter, DraftModel
from pardec.samplers.traits import Trait
from tests.samplers.toys import fill, prompts, toy

SOURCE = '''"""Commits everything at once.

https://arxiv.org/abs/2502.09992
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pardec.samplers.registry import register


@register("everything", stage="select", paper="arXiv:2502.09992")
@dataclass(frozen=True)
class Everything:
    but: Annotated[int, "positions left out, from the right"] = 0

    def select(self, proposal, canvas, state):
        chosen = proposal.eligible.clone()
        chosen[:, chosen.shape[1] - self.but :] = False
        return chosen
'''


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes methods that a test registers; all methods are loaded before."""
    registry.cards()
    monkeypatch.setattr(cards, "_methods", dict(cards._methods))
    yield
    forget()


def forget() -> None:
    """Lets the next lookup read the methods' files and ask for other packages again."""
    for cached in (cards._load_all, cards._load, cards._modules, cards._of_other_packages):
        cached.cache_clear()


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("called", ["Other", "Threshold"])
def test_a_name_is_registered_once(called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SOURCE.replace('"everything"', '"threshold"').replace("class Everything", f"class {called}")
    (tmp_path / f"twice_{called.lower()}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match="a sampler named 'threshold' is registered already, by .*threshold.py:"):
        importlib.import_module(f"twice_{called.lower()}")
    assert registry.find("threshold").make is Threshold


@pytest.mark.usefixtures("scratch")
def test_loading_a_file_again_registers_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_again.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("loaded_again")
    old = module.Everything
    importlib.reload(module)
    assert registry.find("everything").make is module.Everything is not old


@pytest.mark.usefixtures("scratch")
def test_a_stage_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecError, match="mine: unknown stage 'chose'"):
        register("mine", stage="chose")(dataclass(frozen=True)(type("Mine", (), {})))


@pytest.mark.usefixtures("scratch")
def test_a_file_outside_of_the_folders_of_methods_names_its_stage() -> None:
    with pytest.raises(SpecError, match="mine: stage is missing"):
        register("mine")(dataclass(frozen=True)(type("Mine", (), {})))


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    ("stage", "family", "former", "today"),
    [
        ("cache", "ar", "room", "it is max_depth now"),
        ("cache", "masked", "slides", "it is Trait.SLIDES in `provides` now"),
        ("select", None, "tick", "it is skipped_steps now"),
        ("revise", None, "needs_shadow", "it is Trait.LEAVE_ONE_OUT in `provides` now"),
        ("accept", None, "seeded", "it is Trait.SEEDED in `provides` now"),
        ("length", None, "yardstick", "it is uses_answer now"),
    ],
)
def test_a_former_name_of_a_hook_is_refused(stage: str, family: Any, former: str, today: str) -> None:
    made = dataclass(frozen=True)(type("Outside", (Policy,), {former: lambda self: True}))
    with pytest.raises(SpecError, match=f"outside: Outside defines '{former}'.*{today}"):
        register("outside", stage=stage, family=family)(made)
    assert "outside" not in {card.name for card in registry.cards()}
    parameter = type("Parameter", (Policy,), {"__annotations__": {former: Annotated[int, "a number"]}, former: 1})
    register("outside", stage=stage, family=family)(dataclass(frozen=True)(parameter))


def test_a_draft_model_with_a_former_name_is_refused() -> None:
    with pytest.raises(SpecError, match="it is forward_subset now"):
        type("Outside", (DraftModel,), {"forward_over_ids": lambda self, draft, nodes: None})


def test_every_former_name_leads_to_one_that_exists() -> None:
    for (family, stage), names in renamed._FORMER.items():
        base = {"": Policy, "draft_model": DraftModel}.get(stage)
        if base is None:
            contracts = importlib.import_module(
                f"pardec.samplers.{'masked' if family == 'masked' else 'speculative'}.contracts"
            )
            base = getattr(contracts, {"draft": "Drafter", "accept": "Acceptance"}.get(stage, stage.capitalize()))
        for former, today in names.items():
            assert not hasattr(base, former), (stage, former)
            assert isinstance(today, Trait) or hasattr(base, today), (stage, today)


@pytest.mark.usefixtures("scratch")
def test_other_packages_add_methods_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers_everything.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    entry = importlib.metadata.EntryPoint("everything", "strangers_everything", "pardec.samplers")
    asked: list[str] = []

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        asked.append(group)
        return [entry]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    forget()
    card = registry.find("everything")
    assert asked == ["pardec.samplers"]
    assert card.summary == "Commits everything at once."
    assert card.parameters[0]["doc"] == "positions left out, from the right"
    assert fill(toy(), "everything@dual", prompts((3, 2)), 8).nfe == (2, 2)
    assert fill(toy(), "everything:but=4@dual", prompts((3,)), 8).nfe == (8,)  # the loop still makes progress
    with pytest.raises(SpecError, match="unknown parameter 'bit'"):
        resolve("everything:bit=1")


@pytest.mark.usefixtures("scratch")
def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.samplers.cards._broken", {})
    entry = importlib.metadata.EntryPoint("theirs", "no_such_package_of_theirs", "pardec.samplers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry])
    forget()
    with pytest.warns(UserWarning, match="'theirs' of another package .*no_such_package_of_theirs"):
        assert registry.cards()
    with pytest.raises(SpecError, match="unknown sampler 'theirs_own'") as caught:
        resolve("theirs_own")
    assert "no_such_package_of_theirs" in str(caught.value.hint)


@pytest.mark.usefixtures("scratch")
def test_a_negative_threshold_goes_with_entropies_whatever_stands_before() -> None:
    @register("idle_logits", stage="logits")
    @dataclass(frozen=True)
    class IdleLogits:
        kind: Literal["a", "b"] = "a"

        def logits(self, evidence: Any, canvas: Any, state: Any) -> Any:
            return evidence.logits

    assert str(resolve("idle_logits+entropy+threshold:tau=-1").spec).startswith("idle_logits:kind=a+entropy:of=raw+")


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(("stage", "family"), [("widen", "masked"), ("length", "ar")])
def test_a_method_of_another_stage_s_class_is_refused(stage: str, family: Literal["masked", "ar"]) -> None:
    @register("misplaced", stage=stage, family=family)
    @dataclass(frozen=True)
    class Misplaced(Select if family == "masked" else Drafter):  # type: ignore[misc]
        pass

    with pytest.raises(SpecError, match=f"'misplaced' is registered for the stage '{stage}' but is no") as caught:
        resolve("misplaced", family)
    assert (caught.value.hint or "").endswith(f".contracts.{stage.capitalize()}")


@pytest.mark.usefixtures("scratch")
def test_a_method_that_a_class_does_not_define_is_named() -> None:
    @register("misspelt", stage="select")
    @dataclass(frozen=True)
    class Misspelt(Select):
        def selct(self) -> None: ...

    with pytest.raises(SpecError, match="the class Misspelt does not define select"):
        fill(toy(), "misspelt", prompts((3,)), 8)


@pytest.mark.usefixtures("scratch")
def test_a_parameter_without_a_default_is_refused() -> None:
    with pytest.raises(SpecError, match="Bare: the parameter k has no default"):

        @register("bare", stage="select")
        @dataclass(frozen=True)
        class Bare(Select):
            k: int


@pytest.mark.usefixtures("scratch")
def test_a_class_that_is_only_a_policy_gets_the_defaults_of_its_stage() -> None:
    @register("plain_select", stage="select")
    @dataclass(frozen=True)
    class PlainSelect(Policy):
        check: int = 1  # a parameter, which goes before the default of its name
        default_propose = "entropy"

        def select(self, proposal: Any, canvas: Any, state: Any) -> Any:
            return proposal.eligible

    one = PlainSelect()
    assert (one.check, one.default_propose, one.exact) == (1, "entropy", None)
    assert (one.reference_sampler, one.traits, one.start(None)) == (None, frozenset(), None)


@pytest.mark.usefixtures("scratch")
def test_a_method_can_be_typed_at_a_prompt() -> None:
    code = """
@register("typed", stage="select")
@dataclass(frozen=True)
class Typed:
    size: int = 3
    def select(self, proposal, canvas, state): return proposal.eligible
"""
    exec(code, {"__name__": "__main__", "register": register, "dataclass": dataclass})
    card = registry.find("typed")
    assert resolve("typed:size=4").select.size == 4
    assert card.parameters == ({"name": "size", "type": "int", "default": "3", "doc": ""},)
