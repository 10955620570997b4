"""A schema as a context-free grammar, its prefixes, and the number of tokens of the shortest end of each.

A prefix of an answer is represented by what may follow it: the state of a terminal's automaton, and the symbols after
it. The shortest end of such a configuration is the sum of the shortest ends of its parts, each tokenized by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from .patterns import strings
from .regular import Automaton, Expression, States, literal
from .values import Array, Map, Object, Reference, Scalar, Schema, Text, Union, Value, refusal
from .vocabulary import Vocabulary

_MOST_ITEMS = 256  # a bounded array counts its items in rules
_MOST_RULES = 2**14
_MOST_DEPTH = 1000  # rules that lead to each other: llguidance recurs over them, on the stack
_MOST_WAYS = 256  # ways followed at once at one point
_PASSES = 32  # over the rules, after which a reserve counts as unbounded


@dataclass(frozen=True)
class Terminal:
    index: int


Symbol = Terminal | str  # a terminal, or the name of a rule
Stack = tuple[Symbol, "Stack"] | None  # the symbols that follow
Configuration = tuple[int, int, Stack] | None  # terminal, its state, what follows; None: the answer is complete


class Grammar:
    """The rules of a schema: for each name, the alternative sequences of symbols."""

    def __init__(self, schema: Schema) -> None:
        self.begin()
        self.read(schema, "start")
        self.check()

    def begin(self) -> None:
        """Starts without rules."""
        self.terminals: list[Expression] = []
        self.rules: dict[str, list[tuple[Symbol, ...]]] = {}
        self._index: dict[Expression, Terminal] = {}
        self._defined = 0  # definitions of all schemas

    def read(self, schema: Schema, rule: str) -> None:
        """Adds a rule for the value of a schema, and the schema's definitions."""
        self.schema = schema
        self._definitions = {name: f"definition{self._defined + at}" for at, name in enumerate(schema.definitions)}
        self._defined += len(schema.definitions)
        self.rules[rule] = [self._symbols(schema.root)]
        for name, value in schema.definitions.items():
            self.rules[self._rule(name)] = [self._symbols(value)]

    def check(self) -> None:
        """Raises SpecError for a grammar that is too large to follow."""
        if self._most_ways() > _MOST_WAYS:
            hint = "make more properties required, or give fewer options"
            raise refusal("#", f"an answer can continue in more than {_MOST_WAYS} ways at one point", hint)
        if self._depth() > _MOST_DEPTH:
            hint = "ask for fewer items, optional properties or levels in one answer"
            raise refusal("#", f"more than {_MOST_DEPTH} rules of its grammar are nested in each other", hint)

    def _most_ways(self) -> int:
        """An upper bound of the terminals that can begin a rule; above `_MOST_WAYS` if that is not found soon."""
        counts = dict.fromkeys(self.rules, 0)
        for _ in range(_PASSES):
            changed = False
            for name in reversed(self.rules):
                firsts = (way[0] for way in self.rules[name] if way)
                new = sum(1 if isinstance(symbol, Terminal) else counts[symbol] for symbol in firsts)
                new = min(new, _MOST_WAYS + 1)
                changed |= new != counts[name]
                counts[name] = new
            if not changed:
                break
        return max(counts.values())

    def _depth(self) -> int:
        """The length of the longest path from rule to rule in a search from the start."""
        depths: dict[str, int] = {}
        path: list[tuple[str, Iterator[str]]] = []
        known = {"start"}

        def inner(name: str) -> Iterator[str]:
            return (symbol for way in self.rules[name] for symbol in way if isinstance(symbol, str))

        path.append(("start", inner("start")))
        longest = 1
        while path:
            name, rest = path[-1]
            following = next((symbol for symbol in rest if symbol not in known), None)
            if following is not None:
                known.add(following)
                path.append((following, inner(following)))
                longest = max(longest, len(path))
                continue
            path.pop()
            depths[name] = 1 + max((depths.get(symbol, 0) for symbol in inner(name)), default=0)
        return max(longest, depths["start"])

    def _terminal(self, expression: Expression) -> Terminal:
        if expression not in self._index:
            self._index[expression] = Terminal(len(self.terminals))
            self.terminals.append(expression)
        return self._index[expression]

    def _text(self, value: str) -> Terminal:
        return self._terminal(literal(value))

    def _rule(self, name: str) -> str:
        return self._definitions[name]

    def _new(self) -> str:
        name = f"rule{len(self.rules)}"
        if len(self.rules) > _MOST_RULES:
            raise refusal("#", f"its grammar has more than {_MOST_RULES} rules", "ask for less in one answer")
        self.rules[name] = []
        return name

    def _symbols(self, value: Value) -> tuple[Symbol, ...]:
        if isinstance(value, Scalar | Text):
            return (self._terminal(value.expression),)
        if isinstance(value, Reference):
            return (self._rule(value.name),)
        if isinstance(value, Union):
            name = self._new()
            self.rules[name] = [self._symbols(option) for option in value.options]
            return (name,)
        if isinstance(value, Object):
            return self._object(value)
        if isinstance(value, Map):
            pair = (self._terminal(strings()), self._text(":"), *self._symbols(value.value))
            return (self._text("{"), self._list([pair], "}", 0, None))
        assert isinstance(value, Array), "every kind of value"
        items = [self._symbols(each) for each in (*value.prefix, value.item)]
        return (self._text("["), self._list(items, "]", value.least, value.most))

    def _list(self, items: Sequence[tuple[Symbol, ...]], end: str, least: int, most: int | None) -> str:
        """The rule for `least` to `most` of `items`, the last of which repeats, with commas between, and the `end`."""
        if most is not None:
            most = max(min(most, _MOST_ITEMS), least)
        last = max(least, len(items) - 1) if most is None else most
        following = ""  # the rule after each number of items, from the last to none
        for count in range(max(last, 1), -1, -1):
            name = self._new()
            comma = (self._text(","),) if count else ()
            item = items[min(count, len(items) - 1)]
            if count >= least:
                self.rules[name].append((self._text(end),))
            if most is None and count == max(last, 1):
                self.rules[name].append((*comma, *item, name))
            elif following and (most is None or count < most):
                self.rules[name].append((*comma, *item, following))
            following = name
        return following

    def _object(self, value: Object) -> tuple[Symbol, ...]:
        """The members in order; one rule per position and whether a member precedes it."""
        rest: dict[bool, tuple[Symbol, ...]] = dict.fromkeys((False, True), (self._text("}"),))
        for name, member, required in reversed(value.members):
            symbols = self._symbols(member)
            new: dict[bool, tuple[Symbol, ...]] = {}
            for precedes in (False, True):
                key = self._text(("," if precedes else "") + self.schema.key(name))
                way = (key, *symbols, *rest[True])
                if required:
                    new[precedes] = way
                else:
                    rule = self._new()
                    self.rules[rule] = [way, rest[precedes]]
                    new[precedes] = (rule,)
            rest = new
        return (self._text("{"), *rest[False])

    def lark(self) -> str:
        """The grammar in llguidance's variant of Lark."""

        def show(symbol: Symbol) -> str:
            return f"T{symbol.index}" if isinstance(symbol, Terminal) else symbol

        lines = [
            f"{name}: " + " | ".join(" ".join(map(show, way)) or '""' for way in ways)
            for name, ways in self.rules.items()
        ]
        lines += [f"T{index}: /{terminal.regex()}/" for index, terminal in enumerate(self.terminals)]
        return "\n".join(lines)


class Prefixes(States):
    """The prefixes of the answers of a grammar, as states numbered from 0, the empty one; -1 is no prefix.

    A state is the set of its configurations, so that prefixes with the same continuations are one state.
    """

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.grammar, self.vocabulary = grammar, vocabulary
        self.automata = [Automaton(terminal) for terminal in grammar.terminals]
        self._costs = [dict[int, float]() for _ in self.automata]  # costs of the states of each terminal
        self._rule_costs = _least(grammar.rules, lambda symbol: self._terminal_cost(symbol.index, 0))
        if math.isinf(self._rule_costs["start"]):
            raise refusal("#", "every answer would be of infinite length")
        first = frozenset(self._closure(("start", None)))
        self.states: list[frozenset[Configuration]] = [first]
        self._index = {first: 0}
        self._next: list[dict[int, int]] = [{}]
        self._state_costs: list[float | None] = [None]

    def accepts(self, state: int) -> bool:
        """Whether an answer may end there."""
        return None in self.states[state]

    def final(self, state: int) -> bool:
        """Whether an answer must end there."""
        return self.states[state] == {None}

    def cost(self, state: int) -> float:
        """The number of tokens of the shortest end; infinite if the state is not a prefix."""
        if state < 0:
            return math.inf
        cost = self._state_costs[state]
        if cost is None:
            cost = min(self._configuration_cost(each) for each in self.states[state])
            self._state_costs[state] = cost
        return cost

    def reserve(self) -> float:
        """An upper bound of `cost` at any point of an answer; infinite for recursive values."""
        rules = self.grammar.rules
        most = dict.fromkeys(rules, 0.0)
        for _ in range(_PASSES):
            changed = False
            for name in reversed(rules):  # a rule's parts mostly come after it
                new = max(self._reserve(way, most) for way in rules[name])
                changed |= new != most[name]
                most[name] = new
            if not changed:
                return most["start"]
        return math.inf

    def _reserve(self, way: tuple[Symbol, ...], most: Mapping[str, float]) -> float:
        after, result = 0.0, 0.0
        for symbol in reversed(way):
            own = self.grammar.terminals[symbol.index].reserve if isinstance(symbol, Terminal) else most[symbol]
            result = max(result, own + after)
            after += self._symbol_cost(symbol)
        return result

    def _advance(self, state: int, byte: int) -> int:
        following: set[Configuration] = set()
        for configuration in self.states[state]:
            if configuration is None:
                continue
            terminal, position, stack = configuration
            automaton = self.automata[terminal]
            new = automaton.step(position, byte)
            if new < 0:
                continue
            if not automaton.final(new):
                following.add((terminal, new, stack))
            if automaton.accepts(new):
                following |= self._closure(stack)
        result = frozenset(following)
        index = -1
        if result:
            index = self._index.setdefault(result, len(self.states))
            if index == len(self.states):
                self.states.append(result)
                self._next.append({})
                self._state_costs.append(None)
        self._next[state][byte] = index
        return index

    def _closure(self, stack: Stack) -> set[Configuration]:
        """The configurations at the beginning of a terminal, with `stack` after it."""
        result: set[Configuration] = set()
        waiting: list[Stack] = [stack]
        known: set[Stack] = set()
        while waiting:
            stack = waiting.pop()
            if stack in known:
                continue
            known.add(stack)
            if stack is None:
                result.add(None)
                continue
            symbol, rest = stack
            if isinstance(symbol, Terminal):
                result.add((symbol.index, 0, rest))
                continue
            for way in self.grammar.rules[symbol]:
                following = rest
                for each in reversed(way):
                    following = (each, following)
                waiting.append(following)
        return result

    def _configuration_cost(self, configuration: Configuration) -> float:
        if configuration is None:
            return 0
        terminal, state, stack = configuration
        cost = self._terminal_cost(terminal, state)
        while stack is not None:
            symbol, stack = stack
            cost += self._symbol_cost(symbol)
        return cost

    def _symbol_cost(self, symbol: Symbol) -> float:
        return self._terminal_cost(symbol.index, 0) if isinstance(symbol, Terminal) else self._rule_costs[symbol]

    def _terminal_cost(self, terminal: int, state: int) -> float:
        costs = self._costs[terminal]
        if state not in costs:
            shortest = self.automata[terminal].states[state].shortest
            ids = None if shortest is None else self.vocabulary.greedy(shortest)
            costs[state] = math.inf if ids is None else len(ids)
        return costs[state]


def _least(rules: Mapping[str, Sequence[tuple[Symbol, ...]]], cost_of: Callable[[Terminal], float]) -> dict[str, float]:
    """The least cost of each rule, the cheapest first (Knuth, https://doi.org/10.1016/0020-0190(77)90002-3)."""
    costs = dict.fromkeys(rules, math.inf)
    uses: dict[str, list[int]] = {name: [] for name in rules}  # the ways that contain each rule
    owner: list[str] = []
    sums: list[float] = []  # per way, the sum of known costs
    missing: list[int] = []  # per way, the number of rules without a cost
    heap: list[tuple[float, str]] = []
    for name, ways in rules.items():
        for way in ways:
            inner = [symbol for symbol in way if not isinstance(symbol, Terminal)]
            for symbol in inner:
                uses[symbol].append(len(owner))
            owner.append(name)
            sums.append(sum(cost_of(symbol) for symbol in way if isinstance(symbol, Terminal)))
            missing.append(len(inner))
            if not inner:
                heap.append((sums[-1], name))
    heapify(heap)
    while heap:
        cost, name = heappop(heap)
        if cost >= costs[name]:
            continue
        costs[name] = cost
        for way_at in uses[name]:
            sums[way_at] += cost
            missing[way_at] -= 1
            if not missing[way_at]:
                heappush(heap, (sums[way_at], owner[way_at]))
    return costs
