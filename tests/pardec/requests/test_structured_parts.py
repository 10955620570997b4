"""The parts of response_format=: expressions against Python's re; prefixes and automata against enumeration."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import pardec
from pardec.models.errors import SpecError
from pardec.requests.structured.json_grammar import JsonGrammar, compiled
from pardec.requests.structured.numeric import integers, reals
from pardec.requests.structured.patterns import FORMATS, pattern, strings
from pardec.requests.structured.regular import Automaton, Expression, Repeat, characters, choice, literal, sequence
from pardec.requests.structured.token_automata import text_automaton, value_automaton
from pardec.requests.structured.vocabulary import Vocabulary
from tests.pardec.requests.schemas import HELD, MASKED


def accepts(expression: Expression, value: str) -> bool:
    automaton = Automaton(expression)
    state = automaton.run(0, value.encode())
    return state >= 0 and automaton.accepts(state)


def samples(expression: Expression, count: int, seed: int = 0) -> Iterator[bytes]:
    """Random walks to an accepting state; walks that are too long end on the shortest path."""
    automaton, draw = Automaton(expression), random.Random(seed)
    for _ in range(count):
        state, value = 0, b""
        while not (automaton.accepts(state) and (automaton.final(state) or draw.random() < 0.3)):
            if len(value) > 60:
                value += automaton.states[state].shortest or b""
                break
            byte = draw.choice([byte for byte in range(0x20, 0x100) if automaton.step(state, byte) >= 0])
            state, value = automaton.step(state, byte), value + bytes([byte])
        yield value


BOUNDS = [(0, 10), (-5, 120), (18, 99), (-30, -7), (7, 7), (None, 3), (0, None), (100, 2015)]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_integers_lie_between_their_bounds(low: int | None, high: int | None) -> None:
    expression = integers(low, high)
    for value in (*range(-60, 130), 999, 1999, 2015, 2016, 10**14):
        inside = (low is None or value >= low) and (high is None or value <= high)
        assert accepts(expression, str(value)) == inside, value
    assert not any(accepts(expression, text) for text in ("", "-0", "01", "+1", "1.0", "1e3"))


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        *(("0", "1", False, False), ("0", "1", True, True), ("-1", "1", True, False), ("0.25", "0.75", False, True)),
        *(("-2.5", "3.5", False, False), ("0.5", "0.5", False, False), ("-0.2", "-0.1", True, True)),
    ],
)
def test_reals_lie_between_their_bounds(low: str, high: str, above: bool, below: bool) -> None:
    expression, first, last = reals(Decimal(low), Decimal(high), above=above, below=below), Decimal(low), Decimal(high)
    assert expression.shortest is not None
    for value in samples(expression, 200):
        number = Decimal(value.decode())
        assert first <= number <= last
        assert not (above and number == first)
        assert not (below and number == last)
        json.loads(value)
    whole = [str(number) for number in range(-4, 5) if first < number < last]
    assert all(accepts(expression, number) and accepts(expression, f"{number}.0") for number in whole)


def refuse(reason: str) -> Exception:
    return ValueError(reason)


PATTERNS = [r"^[A-Z]{3}-\d{4}$", r"foo|bar", r"^\+?[1-9]\d{1,14}$", r'^a"b\\c$', r"[^abc]+x?$", r"^\S+ \w+.$", r"é?$"]


@pytest.mark.parametrize("text", [*PATTERNS, *FORMATS.values()])
def test_strings_of_a_pattern_match_it(text: str) -> None:
    for value in samples(pattern(text, refuse), 60):
        assert re.search(text, json.loads(value))


@pytest.mark.parametrize("text", [r"(a)\1", r"(?<=a)b", r"^a$b", "(", r"\ba", r"[a\ud800]"])
def test_patterns_without_an_expression_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the pattern"):
        pattern(text, refuse)


def test_characters_are_whole_and_counted() -> None:
    two = strings(2, 2)
    assert all(accepts(two, f'"{value}"') for value in ("ab", "é9", "😀€", '\\"\\n'))
    assert not any(accepts(two, f'"{value}"') for value in ("a", "abc", '"', "a\n", "\\x"))
    automaton = Automaton(two)
    assert automaton.run(0, b'"\xc3"') == -1  # half a character
    assert automaton.run(0, b'"\xc0\x80') == -1  # an overlong form


def test_shortest_reserve_and_longest_are_those_of_all_strings() -> None:
    parts = [literal("ab"), characters("xyz"), Repeat(literal("c"), 1, 3), choice([literal("longer"), literal("s")])]
    expression = sequence([*parts, Repeat(characters("01"), 0, 2)])
    every = {
        "ab" + first + "c" * count + last + "".join(digits)
        for first in "xyz"
        for count in (1, 2, 3)
        for last in ("longer", "s")
        for length in (0, 1, 2)
        for digits in itertools.product("01", repeat=length)
    }
    assert all(accepts(expression, value) for value in every)
    assert (expression.shortest, expression.longest) == (b"abxcs", max(map(len, every)))
    needed = 0  # of every prefix, the fewest characters to an end
    for value in every:
        for cut in range(len(value)):
            needed = max(needed, min(len(other) for other in every if other.startswith(value[:cut])) - cut)
    assert needed <= expression.reserve


# --- grammars ---


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    model = pardec.load("tiny-llama", device="cpu")
    return Vocabulary.of(model.tokenizer, model.language_model.vocab_size)


NAMED = HELD | {name: schema for name, (schema, _) in MASKED.items()}


@pytest.mark.parametrize("name", ["flat", "optional", "nullable", "enum of prefixes", "linked list", "free keys"])
def test_masks_allow_what_can_end_in_time_and_nothing_else(vocabulary: Vocabulary, name: str) -> None:
    """Compared with a search: a token is allowed if single characters can complete it within the budget."""
    whole = compiled(json.dumps(NAMED[name]), vocabulary)
    prefixes, draw = whole.prefixes, random.Random(1)
    budget = int(prefixes.cost(0)) + 6
    grammar = JsonGrammar(whole, budget, [3])
    ids: list[int] = []
    while grammar.first(ids) is None and len(ids) < budget:
        mask = grammar.mask(ids)
        state = prefixes.run(0, b"".join(vocabulary.tokens[token] for token in ids))
        for token in np.flatnonzero(mask).tolist():
            if token == 3:
                assert prefixes.accepts(state)
                continue
            behind = prefixes.run(state, vocabulary.tokens[token])
            assert behind >= 0
            assert prefixes.cost(behind) <= budget - len(ids) - 1
        token = draw.choice(np.flatnonzero(mask).tolist())
        if token == 3:
            break
        ids.append(token)
    json.loads(b"".join(vocabulary.tokens[token] for token in ids))


@pytest.mark.parametrize("name", ["flat", "enum of prefixes", "tree", "bounded array", "union of objects"])
def test_the_cost_of_a_prefix_is_that_of_an_end_that_exists(vocabulary: Vocabulary, name: str) -> None:
    """From any prefix, tokens that each lower the cost by one lead to an end in exactly `cost` steps."""
    whole = compiled(json.dumps(NAMED[name]), vocabulary)
    prefixes, draw = whole.prefixes, random.Random(2)
    every = [token for token, value in enumerate(vocabulary.tokens) if value]
    for _ in range(6):
        state = 0
        for _ in range(draw.randrange(12)):
            following = {prefixes.run(state, vocabulary.tokens[token]) for token in every} - {-1}
            if not following:
                break
            state = draw.choice(sorted(following))
        cost = prefixes.cost(state)
        while cost:
            costs = {prefixes.run(state, vocabulary.tokens[token]) for token in every} - {-1}
            state = min(costs, key=prefixes.cost)
            assert prefixes.cost(state) <= cost - 1
            cost = prefixes.cost(state)
        assert prefixes.accepts(state)


def test_masks_depend_on_the_ids_alone(vocabulary: Vocabulary) -> None:
    """A mask does not depend on what the grammar read before: draft trees are read branch by branch."""
    whole = compiled(json.dumps(NAMED["tree"]), vocabulary)
    draw = random.Random(3)
    used = JsonGrammar(whole, 40, [3])
    histories: list[list[int]] = [[]]
    for _ in range(60):
        ids = draw.choice(histories)
        mask = used.mask(ids)
        assert np.array_equal(mask, JsonGrammar(whole, 40, [3]).mask(ids))
        if len(ids) < 30:
            histories.append([*ids, draw.choice(np.flatnonzero(mask).tolist())])
    assert used.mask([5, 5]).all()  # after what is no prefix, anything


# --- automata over tokens ---


def test_a_gap_takes_exactly_the_values_that_fit(vocabulary: Vocabulary) -> None:
    expression = choice([integers(8, 12), literal("true"), literal('"a"')])
    automaton = value_automaton(expression, 3, vocabulary, (0, 3))
    characters_of = {value: token for token, value in enumerate(vocabulary.tokens) if len(value) == 1}
    alphabet = [*(characters_of[bytes([byte])] for byte in b'0123489ab"true'), 0, 3]
    texts = {}
    for tokens in itertools.product(alphabet, repeat=3):
        values = [vocabulary.tokens[token] for token in tokens]
        ends = [at for at, token in enumerate(tokens) if token in (0, 3)]
        fits = accepts(expression, b"".join(values).decode()) and ends == list(range(3 - len(ends), 3))
        texts[tokens] = fits
        assert automaton.allows(np.array(tokens)) == fits
    # Of any two positions given, the third takes what some value has there.
    draw = random.Random(4)
    for _ in range(80):
        tokens = np.array(draw.choice([key for key, fits in texts.items() if fits]))
        position = draw.randrange(3)
        sets = automaton.sets(np.where(np.arange(3) == position, -1, tokens))
        for token in alphabet:
            other = (*tokens[:position], token, *tokens[position + 1 :])
            assert sets[position, token] == texts[tuple(map(int, other))]


@pytest.mark.parametrize(("least", "most"), [(2, 5), (0, 4), (3, None)])
def test_a_string_has_as_many_characters_as_it_may(vocabulary: Vocabulary, least: int, most: int | None) -> None:
    automaton = text_automaton(least, most, 3, vocabulary, (0, 3))
    some = [next(t for t, value in enumerate(vocabulary.tokens) if len(value) == length) for length in (1, 2, 4)]
    for tokens in itertools.product([*some, 0], repeat=3):
        length = sum(len(vocabulary.tokens[token]) for token in tokens)
        plain = all(vocabulary.tokens[token] not in (b'"', b"\\") for token in tokens)
        fits = least <= length <= (most or 99) and plain
        if min(tokens) >= 0 and all(vocabulary.tokens[t] != b"\n" for t in tokens):
            assert automaton.allows(np.array(tokens)) == fits, tokens


def metaspace(kind: str, *, cleans: bool, fallback: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer with every printed character, alone and after a space, and with tokens called like bytes."""
    printed = [chr(byte) for byte in range(0x21, 0x7F)]
    words = ["\u2581", *printed, *(f"\u2581{char}" for char in printed), "<0x0A>", "<0xZZ>"]
    if kind == "unigram":
        made = Tokenizer(models.Unigram([("<unk>", 0.0), *((word, -1.0) for word in words)], unk_id=0))
    else:
        made = Tokenizer(models.BPE({word: at for at, word in enumerate(["<unk>", *words])}, [], unk_token="<unk>"))
    made.pre_tokenizer, parts = pre_tokenizers.Metaspace(), [decoders.Metaspace()]
    made.decoder = decoders.Sequence([decoders.ByteFallback(), *parts] if fallback else parts)
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=cleans)


@pytest.mark.parametrize(("kind", "cleans"), [("unigram", True), ("unigram", False), ("bpe", True)])
def test_a_tokenizer_that_changes_spaces_of_a_text_writes_no_json(kind: str, cleans: bool) -> None:
    """transformers takes out spaces before marks where a config says so, but for BPE."""
    tokenizer = metaspace(kind, cleans=cleans)
    text = tokenizer.decode(tokenizer("a , b")["input_ids"])
    if (kind, cleans) == ("unigram", True):
        assert text == "a, b"
        with pytest.raises(SpecError, match="changes spaces in it: \"a. b, c! d[?] e's fn't\"") as refusal:
            Vocabulary.of(tokenizer, len(tokenizer))
        assert "clean_up_tokenization_spaces" in str(refusal.value.hint)
    else:
        assert text == "a , b"
        Vocabulary.of(tokenizer, len(tokenizer))


@pytest.mark.parametrize("fallback", [True, False])
def test_a_token_called_like_a_byte_is_one_where_the_tokenizer_has_byte_fallback(fallback: bool) -> None:
    tokenizer = metaspace("bpe", cleans=False, fallback=fallback)
    tokens = Vocabulary.of(tokenizer, len(tokenizer)).tokens
    for name in ("<0x0A>", "<0xZZ>"):
        number = tokenizer.convert_tokens_to_ids(name)
        start = tokenizer.convert_tokens_to_ids("a")
        assert tokens[number] == tokenizer.decode([start, number]).removeprefix("a").encode()
