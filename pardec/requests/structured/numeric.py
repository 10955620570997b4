"""JSON numbers between two bounds as regular expressions, without exponents."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from .regular import NOTHING, Expression, Repeat, characters, choice, literal, optional, sequence

DIGITS = 15  # most digits before the point, and after it: what a float64 tells apart
_DIGIT = characters("0123456789")
_LARGEST = 10**DIGITS - 1


def integers(low: int | None, high: int | None) -> Expression:
    """Whole numbers from `low` to `high`, without leading zeros; with None, only the number of digits is bounded."""
    low = -_LARGEST if low is None else max(low, -_LARGEST)
    high = _LARGEST if high is None else min(high, _LARGEST)
    ways = []
    if low < 0:
        ways.append(sequence([literal("-"), _naturals(max(1, -high), -low)]))
    if high >= 0:
        ways.append(_naturals(max(0, low), high))
    return choice(ways)


def reals(low: Decimal | None, high: Decimal | None, *, above: bool = False, below: bool = False) -> Expression:
    """Decimal numbers from `low` to `high`.

    With bounds that are no whole numbers, those that share their whole part with a bound may be left out.

    Args:
        above: `low` itself is left out. below: `high` is.
    """
    largest = Decimal(_LARGEST)
    low, above = (-largest, False) if low is None or low < -largest else (low, above)
    high, below = (largest, False) if high is None or high > largest else (high, below)
    ways = []
    if low < 0:
        ways.append(sequence([literal("-"), _positive(max(Decimal(0), -high), -low, below and high <= 0, above)]))
    if high >= 0:
        ways.append(_positive(max(Decimal(0), low), high, above and low >= 0, below))
    return choice(ways)


def _positive(low: Decimal, high: Decimal, above: bool, below: bool) -> Expression:
    """Decimal numbers from `low`, at least 0, to `high`."""
    first, last = (int(low.to_integral_value(ROUND_CEILING)), int(high.to_integral_value(ROUND_FLOOR)))
    if first > last:
        return _between(low, high, above, below)
    ways = []
    fraction = sequence([literal("."), Repeat(_DIGIT, 1, DIGITS)])
    if above and low == first:  # at least one digit that is no zero
        some = sequence([literal("."), Repeat(_DIGIT, 0, DIGITS - 1), characters("123456789")])
        if first < last:
            ways.append(sequence([literal(str(first)), some]))
        first += 1
    if first < last:
        ways.append(sequence([_naturals(first, last - 1), optional(fraction)]))
    if first <= last and not (below and high == last):
        ways.append(sequence([literal(str(last)), optional(literal(".0"))]))
    return choice(ways)


def _between(low: Decimal, high: Decimal, above: bool, below: bool) -> Expression:
    """Decimal numbers between two bounds that have no whole number between them, with as many digits as needed."""
    whole = int(low)
    for digits in range(1, DIGITS + 1):
        scale = Decimal(10) ** digits
        first = int(((low - whole) * scale).to_integral_value(ROUND_CEILING))
        last = int(((high - whole) * scale).to_integral_value(ROUND_FLOOR))
        first += above and Decimal(first) / scale + whole == low
        last -= below and Decimal(last) / scale + whole == high
        if first <= last:
            return sequence([literal(f"{whole}."), _fixed(str(first).zfill(digits), str(last).zfill(digits))])
    return NOTHING


def _naturals(low: int, high: int) -> Expression:
    """Whole numbers from `low`, at least 0, to `high`."""
    ways = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        last = min(high, 10**digits - 1)
        if first <= last:
            ways.append(_fixed(str(first), str(last)))
    return choice(ways)


def _fixed(first: str, last: str) -> Expression:
    """Strings of digits from one bound to the other, all of the bounds' length."""
    if not first:
        return literal("")
    rest = len(first) - 1
    if first[1:] == "0" * rest and last[1:] == "9" * rest:
        return sequence([_digits(first[0], last[0]), Repeat(_DIGIT, rest, rest)])
    if first[0] == last[0]:
        return sequence([literal(first[0]), _fixed(first[1:], last[1:])])
    ways = [sequence([literal(first[0]), _fixed(first[1:], "9" * rest)])]
    if ord(last[0]) - ord(first[0]) > 1:
        middle = _digits(chr(ord(first[0]) + 1), chr(ord(last[0]) - 1))
        ways.append(sequence([middle, Repeat(_DIGIT, rest, rest)]))
    ways.append(sequence([literal(last[0]), _fixed("0" * rest, last[1:])]))
    return choice(ways)


def _digits(first: str, last: str) -> Expression:
    return characters("".join(map(chr, range(ord(first), ord(last) + 1))))
