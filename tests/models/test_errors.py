from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from pardec.models import errors


def test_an_error_is_one_line_and_a_hint():
    error = errors.ModelError("what is wrong", "what would work")
    assert (str(error), error.hint) == ("what is wrong", "what would work")
    assert errors.PardecError("alone").hint is None
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.hint) == (str(error), error.hint)


def test_hint_is_printed_once_with_an_uncaught_error():
    error = errors.SpecError("what is wrong", "what would work")
    for same in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        lines = "".join(traceback.format_exception_only(same)).splitlines()
        assert lines == ["pardec.models.errors.SpecError: what is wrong", "what would work"]
    assert not hasattr(errors.PardecError("alone"), "__notes__")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ModelError, ValueError),
        (errors.UnknownModelError, LookupError),
        (errors.CacheError, ValueError),
        (errors.CapacityError, ValueError),
        (errors.SpecError, ValueError),
        (errors.UnknownNameError, LookupError),
    ],
)
def test_errors_are_also_the_fitting_builtin(kind, builtin):
    assert issubclass(kind, builtin)
    assert issubclass(kind, errors.PardecError)


def test_near_names_are_offered():
    assert errors.did_you_mean("tiny-Dreem", ["tiny-dream", "other"]) == " (did you mean 'tiny-dream'?)"
    assert errors.did_you_mean("zzz", ["tiny-dream"]) == ""


def test_long_lists_are_cut():
    assert errors.listed("abc") == "a, b, c"
    assert errors.listed("abcd", limit=2) == "a, b and 2 more"


def test_foreign_errors_fit_on_a_line():
    assert errors.one_line(ValueError("a\n  b")) == "a b"
    assert errors.one_line(KeyError()) == "KeyError"
    assert errors.one_line(ValueError("x" * 400), limit=10) == "xxxxxxx..."
