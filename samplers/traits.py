"""Traits that stages, models and requests have and need, as one enum, and the check of all pairs.

A stage declares `provides`, a set of traits, and `requires` and `conflicts`, which give for each trait the sentence of
the error. `refuse` compares every stage with the other stages, the model and the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique

from pardec.models.errors import PardecError, SpecError


@unique
class Trait(StrEnum):
    """A property that decides which stages, models and requests work together; its value is the phrase in errors."""

    by: str  # the stage that may have it, "stage" for any, "model" or "request"

    def __new__(cls, phrase: str, by: str) -> Trait:
        trait = str.__new__(cls, phrase)
        trait._value_, trait.by = phrase, by
        return trait

    # --- stages of masked models ---
    MOVES_BLOCKS = "moves blocks", "block"
    BRANCHES = "tries several hypotheses of a row", "branch"
    KEEPS_TOKENS = "keeps the tokens of the sampler without it", "branch"
    HIDES_POSITIONS = "leaves out masks after the block", "query"
    ADDS_TO_INPUTS = "adds to the inputs of masks", "inputs"
    OBSERVES_CHANGED_LOGITS = "observes the distribution after the logits stages", "inputs"
    KNOWN_SCORES = "knows its scores before the forward", "propose"
    SCORES_BY_ENTROPY = "scores by minus an entropy in nats", "propose"
    SCORES_WITHOUT_PROBABILITY = "has scores that are not probabilities", "propose"
    COUNTS_STEPS = "divides its steps among blocks of one length", "select"
    COUNTS_FORWARDS = "depends on the number of forwards", "select"
    MAY_WAIT = "may commit nothing in a step", "select"
    ORDER_OF_SCORES = "commits a known number of the best scores", "select"
    KNOWN_ORDER = "knows before a forward what it commits", "select"
    COMPARES_FINISHED_TEXT = "compares with the finished text of another sampler", "select"
    IDLE = "revises nothing with these parameters", "revise"
    LEAVE_ONE_OUT = "predicts each token without itself", "revise"
    MOVES_TOKENS = "moves tokens within the block", "revise"
    RENOISES = "draws a new random canvas", "revise"
    WRITES_BLOCKS = "writes the whole block at every step", "revise"
    WIDENS = "changes the choice of the select", "widen"
    FILLS_ROWS = "commits all open positions of a row at once", "finish"
    CUTS_ROWS = "ends rows after their block", "finish"
    STORES_KV = "keeps keys and values of earlier forwards", "cache"
    KV_OF_TOKENS = "has keys and values that depend on the tokens only", "cache"
    WHOLE_BLOCK = "computes the whole block at every forward", "cache"
    SLIDES = "moves the block itself", "cache"
    PART_OF_BLOCK = "decodes a part of one block", "cache"
    REUSES_PREDICTIONS = "keeps predictions of earlier forwards", "cache"
    REUSES_LAYERS = "keeps layer outputs of earlier forwards", "cache"
    STORES_CAUSALLY = "stores finished text by a causal forward", "cache"
    # --- any stage of masked models ---
    READS_ATTENTION = "reads attention weights", "stage"
    READS_WHOLE_ROW = "reads predictions beyond the block", "stage"
    REMEMBERS = "remembers every forward", "stage"
    KEEPS_NO_STATE = "remembers nothing with these parameters", "stage"
    GOES_BY_POSITION = "depends on the positions of tokens", "stage"
    NEEDS_NO_HOST = "decides on the device alone", "stage"
    ACTS_BETWEEN_STEPS = "acts between steps", "stage"
    # --- stages of autoregressive models ---
    TAKES_SHAPE = "drafts with a model, in a shape", "draft"
    TAKES_LENGTH = "drafts token after token, and can stop early", "draft"
    ONE_FORWARD_DRAFTS = "drafts all tokens of a round in one forward", "draft"
    DRAFTS_DURING_VERIFY = "drafts within the verify forward", "draft"
    ADDS_VERIFY_NODES = "adds its own nodes or states to the verify forward", "draft"
    COPIES = "copies known tokens", "draft"
    READS_PROMPT = "reads the forward of the prompt", "draft"
    FEEDS_TEXT_AGAIN = "feeds tokens of the text again", "draft"
    SPLITS_TARGET = "runs the target in parts", "draft"
    KEEPS_DRAFTS = "drafts from data of earlier requests", "draft"
    DRAFTS_ONE_CHAIN = "drafts one chain per row", "draft"
    ADDS_BRANCHES = "adds branches to whatever the shape drafts", "draft"
    DRAFTS_TREES = "drafts trees", "shape"
    ADAPTIVE_TREES = "grows trees depending on the sampled tokens", "shape"
    UNPROCESSED_SCORES = "grows drafts by unprocessed logits", "shape"
    DROPS_LAST = "does not draft the token at which it stops", "length"
    OBSERVES_TOKENS = "observes the accepted tokens, and no distributions of the target", "stage"
    TIMES_ROUNDS = "decides by the clock", "stage"
    FOLLOWS_PICK = "accepts the child that equals one picked token", "accept"
    SEEDED = "has samples that do not depend on the drafts", "accept"
    LIKELIEST_ONLY = "accepts the likeliest tokens only", "accept"
    INDEPENDENT_SIBLINGS = "needs independent samples", "accept"
    CHANGES_TARGET = "changes what the target's attention reads", "cache"
    ENCODES_KV = "stores older keys and values encoded", "cache"
    MOVES_KV = "stores keys and values at other places than those of the text", "cache"
    SHARES_PROMPTS = "lets rows share the K/V of a prompt", "cache"
    LONGER_TEXTS = "takes texts longer than the model was trained for", "cache"
    # --- models ---
    BIDIRECTIONAL = "has bidirectional attention", "model"
    BLOCK_CAUSAL = "has block-causal attention", "model"
    WINDOWED_CAUSAL = "has windowed-causal attention", "model"
    CAUSAL_PREFIX = "has causal-prefix attention", "model"
    CAUSAL = "has causal attention", "model"
    FOLLOWS_CANVAS = "has attention that depends on which tokens are known", "model"
    RANDOM_CANVAS = "starts from a canvas of random tokens", "model"
    SLIDING_LAYERS = "has layers with sliding windows", "model"
    PLAIN_DECODER = "runs in the native decoder over one text, on any number of slots", "model"
    SHARED_BY_PROCESSES = "is shared by processes", "model"
    # --- requests ---
    TEMPERATURE = "a temperature above 0 is set", "request"
    LOGPROBS = "log-probabilities are recorded", "request"
    ALLOWED_TOKENS = "allowed tokens are set", "request"
    CONDITIONS = "image conditions are given", "request"
    PROCESSORS = "logits processors are given", "request"
    GRAMMAR = "a text format is given", "request"
    STOPS = "stop strings are given", "request"
    LATE_END = "a minimum number of tokens is set", "request"


@dataclass(frozen=True, slots=True)
class Why:
    """The reason why a stage needs a trait or conflicts with it, and the hint what to do instead.

    `sentence` is a format: `{me}` is the name of the stage that says so, `{other}` that of the stage, model or request
    which has the trait or should have it, `{does}` that name with the trait's own words, and `{kind}` what
    `Party.kinds` says of it. So is the way out.
    """

    sentence: str
    way_out: str = ""
    unless: Trait | None = None  # a conflict does not apply if any party has this trait
    error: type[PardecError] = SpecError


Reasons = Mapping[Trait, Why]
NONE: frozenset[Trait] = frozenset()


@dataclass(frozen=True, slots=True)
class Party:
    """A side of the comparison: a stage, the model or the request."""

    name: str
    stage: str  # a stage's name, "model" or "request"
    provides: frozenset[Trait] = NONE
    requires: Reasons = field(default_factory=dict)
    conflicts: Reasons = field(default_factory=dict)
    kinds: Mapping[Trait, str] = field(default_factory=dict)  # details of a trait that it has or lacks, for messages

    def does(self, trait: Trait) -> str:
        """The phrase that says that it has the trait."""
        return str(trait) if self.stage == "request" else f"{self.name} {trait}"


def refuse(parties: Sequence[Party]) -> None:
    """Raises an error for the first two parties that conflict or lack a required trait.

    What only a model can have is required only where one is among the parties.
    """
    everything = frozenset[Trait]().union(*(party.provides for party in parties))
    stages = {party.stage for party in parties}
    for party in parties:
        for trait, why in party.conflicts.items():
            if trait in everything and why.unless not in everything:
                other = next((one for one in parties if trait in one.provides and one is not party), None)
                if other is not None:
                    raise _error(why, party, other.name, other.kinds.get(trait, ""), other.does(trait))
        for trait, why in party.requires.items():
            if trait not in everything and (trait.by != "model" or "model" in stages):
                others = [one for one in parties if one.stage == trait.by]
                name, kind = "+".join(one.name for one in others), "".join(one.kinds.get(trait, "") for one in others)
                raise _error(why, party, name, kind, trait)


def _error(why: Why, party: Party, other: str, kind: str, does: str) -> PardecError:
    said = {"me": party.name, "other": other, "kind": kind, "does": does}
    return why.error(why.sentence.format(**said), why.way_out.format(**said))
