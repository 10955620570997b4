"""Scenes that images show, and their captions.

A caption is "a large red circle at the top left on grey" or "a small red circle left of a large blue square on grey".
Two captions that describe the same scene in either order of its shapes are in the same split.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass

from pardec.models.errors import SpecError, did_you_mean

SIZES = ("small", "large")
COLOURS = {
    "red": (216, 48, 44),
    "yellow": (234, 206, 50),
    "green": (52, 164, 72),
    "cyan": (60, 190, 208),
    "blue": (48, 82, 208),
    "purple": (152, 62, 180),
}
SHAPES = ("circle", "square", "triangle")
BACKGROUNDS = {"black": (30, 30, 30), "grey": (128, 128, 128), "white": (230, 230, 230)}
POSITIONS = {  # column and row of a 3x3 grid, from its middle
    "at the top left": (-1, -1),
    "at the top": (0, -1),
    "at the top right": (1, -1),
    "at the left": (-1, 0),
    "in the middle": (0, 0),
    "at the right": (1, 0),
    "at the bottom left": (-1, 1),
    "at the bottom": (0, 1),
    "at the bottom right": (1, 1),
}
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
SPLITS = ("heldout", "train")
ONE = 0.35  # share of the images with a single shape
_PATIENCE = 5_000  # consecutive samples without a new caption before the split counts as exhausted
_HINT = 'for example "a small red circle left of a large blue square on grey"'


@dataclass(frozen=True)
class Thing:
    """One shape."""

    size: str
    colour: str
    shape: str

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """One shape with its position, or two of different colours with the relation of the first to the second."""

    things: tuple[Thing, ...]
    position: str  # one of POSITIONS for a single shape, of RELATIONS for two
    background: str

    @property
    def caption(self) -> str:
        """The scene as a caption."""
        first, *others = map(str, self.things)
        return " ".join([first, self.position, *others, "on", self.background])

    def canonical(self) -> Scene:
        """The same scene with the left or upper shape first."""
        if self.position in ("right of", "below"):
            return Scene(self.things[::-1], _OPPOSITE[self.position], self.background)
        return self

    @property
    def split(self) -> str:
        """The split of the scene; about a tenth of all scenes is held out."""
        digest = hashlib.sha256(f"pictures|{self.canonical().caption}".encode()).digest()
        return "heldout" if int.from_bytes(digest[:8], "big") % 10 == 0 else "train"


def parse(caption: str) -> Scene:
    """Parses a caption to its scene, ignoring case and punctuation.

    Raises:
        SpecError: the caption has another form; the message names the wrong word.

    >>> parse("a small red circle left of a large blue square on grey").things[1].colour
    'blue'
    """
    words = words_of(caption)
    first, rest = _thing(words, caption)
    position, rest = _phrase(rest, (*POSITIONS, *RELATIONS), "position", caption)
    things = [first]
    if position in RELATIONS:
        second, rest = _thing(rest, caption)
        things.append(second)
        if first.colour == second.colour:
            raise SpecError(f"both shapes in {caption!r} are {first.colour}", hint="give them different colours")
    if rest[:1] != ["on"]:
        raise SpecError(f"the caption {caption!r} does not end in a background", hint=_HINT)
    background, rest = _word(rest[1:], tuple(BACKGROUNDS), "background", caption)
    if rest:
        raise SpecError(f"the caption {caption!r} continues after its background: {' '.join(rest)!r}", hint=_HINT)
    return Scene(tuple(things), position, background)


def words_of(caption: str) -> list[str]:
    """The words of a caption, in lower case and without punctuation.

    >>> words_of("A small red circle, on White.")
    ['a', 'small', 'red', 'circle', 'on', 'white']
    """
    return re.findall(r"\w+", caption.lower())


def _word(words: list[str], known: tuple[str, ...], kind: str, caption: str) -> tuple[str, list[str]]:
    if not words or words[0] not in known:
        word = repr(words[0]) if words else "the end"
        near = did_you_mean(words[0], known) if words else ""
        raise SpecError(f"{word} is no {kind} in {caption!r}{near}", hint=f"{kind}s: {', '.join(known)}")
    return words[0], words[1:]


def _phrase(words: list[str], known: tuple[str, ...], kind: str, caption: str) -> tuple[str, list[str]]:
    """The longest known phrase that the words begin with."""
    matches = [phrase for phrase in known if words[: phrase.count(" ") + 1] == phrase.split()]
    if not matches:
        raise SpecError(f"no {kind} after the first shape in {caption!r}", hint=f"{kind}s: {', '.join(known)}")
    best = max(matches, key=len)
    return best, words[best.count(" ") + 1 :]


def _thing(words: list[str], caption: str) -> tuple[Thing, list[str]]:
    if words[:1] != ["a"]:
        raise SpecError(f"the caption {caption!r} has no 'a' where a shape begins", hint=_HINT)
    size, words = _word(words[1:], SIZES, "size", caption)
    colour, words = _word(words, tuple(COLOURS), "colour", caption)
    shape, words = _word(words, SHAPES, "shape", caption)
    return Thing(size, colour, shape), words


def sample(rng: random.Random, split: str | None = "train") -> Scene:
    """A random scene of the split (None: of either); advances rng."""
    while True:
        two = rng.random() >= ONE
        colours = rng.sample(tuple(COLOURS), 2 if two else 1)
        things = tuple(Thing(rng.choice(SIZES), colour, rng.choice(SHAPES)) for colour in colours)
        position = rng.choice(tuple(RELATIONS if two else POSITIONS))
        scene = Scene(things, position, rng.choice(tuple(BACKGROUNDS)))
        if split is None or scene.split == split:
            return scene


def captions(split: str = "heldout", n: int = 200, seed: int = 7) -> list[str]:
    """`n` distinct captions; the first ones stay the same when n grows.

    Raises:
        SpecError: an unknown split, n below 1, or more captions than the split has.

    >>> captions(n=1) == captions(n=3)[:1]
    True
    """
    if split not in SPLITS:
        raise SpecError(
            f"unknown split {split!r}{did_you_mean(str(split), SPLITS)}", hint=f"splits: {', '.join(SPLITS)}"
        )
    if n < 1:
        raise SpecError(f"n must be at least 1, got {n}", hint="n is the number of captions")
    rng = random.Random(f"pictures/{split}/{seed}")
    unique: dict[str, None] = {}
    idle = 0
    while len(unique) < n:
        caption = sample(rng, split).caption
        idle = idle + 1 if caption in unique else 0
        if idle > _PATIENCE:
            raise SpecError(f"{split} has only {len(unique)} captions, got n={n}", hint="choose a smaller n")
        unique[caption] = None
    return list(unique)
