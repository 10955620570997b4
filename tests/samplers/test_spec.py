"""Spec strings: the grammar, quoting, and errors that state what was expected where."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pardec.models.errors import PardecError, SpecError
from pardec.samplers.spec import Part, Spec, parse

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text('+@,:="\\ \n\tab', max_size=8)
PARTS = st.builds(Part, NAMES, st.dictionaries(NAMES, VALUES, max_size=3).map(lambda d: tuple(d.items())))
SPECS = st.builds(Spec, st.lists(PARTS, min_size=1, max_size=4).map(tuple), st.none() | PARTS)


@settings(max_examples=150, deadline=None)
@given(SPECS)
def test_a_spec_is_what_its_text_reads_as(spec: Spec) -> None:
    assert parse(str(spec)) == spec
    assert str(parse(str(spec))) == str(spec)
    assert re.fullmatch(r"[A-Za-z0-9._-]*", spec.slug)


@settings(max_examples=150, deadline=None)
@given(st.text('abτ0+@,:="\\ \n.', max_size=14))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        spec = parse(text)
    except SpecError as error:
        refused = error
    else:
        assert parse(str(spec)) == spec
        return
    assert "\n" not in str(refused)


def test_the_form_of_the_design_page() -> None:
    spec = parse('credit+sjd:window=32+lantern:k=100,delta=0.1+model:name="a+b@c, \\"d\\""@dkv:refresh=8')
    assert [part.name for part in spec.parts] == ["credit", "sjd", "lantern", "model"]
    assert spec.parts[2].params == (("k", "100"), ("delta", "0.1"))
    assert spec.parts[3].params == (("name", 'a+b@c, "d"'),)
    assert spec.cache == Part("dkv", (("refresh", "8"),))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" threshold : tau = 0.9 @ dual ", "threshold:tau=0.9@dual"),
        ('threshold:tau="0.9"', "threshold:tau=0.9"),
        ("model:name=/a/b-c_d.e~f", "model:name=/a/b-c_d.e~f"),
        ('model:name=""', 'model:name=""'),
        ('model:name="a b"', 'model:name="a b"'),
        ("threshold:tau=-1e-3", "threshold:tau=-1e-3"),
    ],
)
def test_the_canonical_form_has_no_spaces_and_no_needless_quotes(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


def test_a_slug_names_a_file() -> None:
    assert parse("credit+threshold:tau=0.9@dual:refresh=8").slug == "credit-threshold-tau-0.9-dual-refresh-8"
    assert parse("sequential").slug == "sequential"


def test_a_spec_that_is_parsed_already_stays() -> None:
    spec = parse("threshold@dual")
    assert parse(spec) is spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a name in sampler '', got nothing"),
        ("  ", "cannot read sampler '  '"),
        ("+threshold", "expected a name in sampler '+threshold', got '+'"),
        ("threshold+", "expected a name in sampler 'threshold+', got nothing"),
        ("@dual", "expected a name in sampler '@dual', got '@'"),
        ("threshold@", "expected a name in sampler 'threshold@', got nothing"),
        ("threshold:", "expected a parameter name of 'threshold'"),
        ("threshold:tau", "expected '=' after threshold:tau"),
        ("threshold:tau=", "expected a value for threshold:tau"),
        ("threshold:tau==1", "expected a value for threshold:tau in sampler 'threshold:tau==1', got '='"),
        ("threshold:tau=1,", "expected a parameter name of 'threshold'"),
        ("threshold:tau=1,tau=2", "threshold: parameter 'tau' is given twice"),
        ("threshold tau=1", "unexpected 'tau' in sampler 'threshold tau=1'"),
        ("threshold@dual@prefix", "one cache may follow '@', at the end"),
        ("threshold@dual+eos", "one cache may follow '@', at the end"),
        ('threshold:tau="0.9', "cannot read sampler"),
        ("0.9", "expected a name in sampler '0.9', got '0.9'"),
        ('"threshold"', "expected a name in sampler"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, PardecError)


@pytest.mark.parametrize("wrong", [3, None, ["threshold"], {"name": "threshold"}])
def test_something_else_than_text_is_refused(wrong: object) -> None:
    with pytest.raises(SpecError, match="a sampler must be a spec string, got "):
        parse(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a" + "+a" * 200_000, "a:" + ",".join(f"k{i}=1" for i in range(200_000))])
def test_more_parts_than_anybody_writes_are_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(SpecError, match="has more than 64 pa") as caught:
        parse(text)
    assert time.process_time() - began < 3
    assert len(str(caught.value)) < 100


def test_sixty_four_parts_are_read() -> None:
    assert len(parse("a" + "+a" * 63).parts) == 64
