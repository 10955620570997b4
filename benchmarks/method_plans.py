"""How `methods.py` measures each method, and why some methods gain nothing here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pardec.samplers import registry
from pardec.samplers.cards import Card
from pardec.samplers.spec import Spec

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))
from pages.methods import example

sys.path.pop()


@dataclass(frozen=True)
class Plan:
    """How a method is measured; an empty `spec` is the example of its page, an empty `plain` that spec without it."""

    model: str
    task: str
    problems: int
    spec: str = ""
    plain: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    loading: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""  # what a gain would need
    reason: str = ""  # why there is none


MASKED = Plan("tiny-dream", "chains-64", 40, arguments={"block_length": 32})
LONG = Plan("tiny-dream", "chains-128", 32, arguments={"block_length": 32})  # rows of up to 230 positions
SUMS = Plan("tiny-llama", "arithmetic", 80)
COPIES = Plan("tiny-llama", "copies", 80)  # task of benchmarks/speculation.py: answers repeat the prompt
SAMPLED = replace(SUMS, arguments={"temperature": 1.0})
CODES = Plan("tiny-llamagen", "captions", 48)
VECTORS = Plan("tiny-mar", "classes", 24)
MAPS = Plan("tiny-var", "classes", 216)
UNMEASURED = Plan("", "", 0)  # no embedded model or module runs it

OF_OTHER_FAMILIES = (
    *("selfcondition", "denoise", "renoise", "levenshtein", "ancestral", "adaptive", "defer"),
    *("block", "subblock", "window", "causal"),
)
# tiny-nemotron was trained on whole blocks after causal text, not on windows that slide.
WINDOWS = Plan(
    "tiny-nemotron",
    "arithmetic",
    80,
    "contiguous:tau=0.9@next_sequence",
    "contiguous:tau=0.9@causal",
    arguments={"block_length": 8},
)
OF_STAGE = {
    "masked": {
        **dict.fromkeys(("block", "finish", "cache"), LONG),
        "query": replace(LONG, task="chains", problems=20),  # 256 masks after the prompt
        "propose": replace(MASKED, spec="{}+fixed:steps=32"),
    },
    "ar": {},
    "continuous": {"vectors": VECTORS},
    "scales": {"maps": MAPS},
}
DEFAULT = {"masked": MASKED, "ar": SUMS}
OF_METHOD = {
    "masked": {
        "freedave": replace(MASKED, spec="freedave+threshold:tau=0.9"),
        "lopa": replace(MASKED, spec="lopa+threshold:tau=0.9"),
        "provisional": replace(MASKED, spec="leap:tau=0.7+provisional:tau=0.98"),  # as in preset:dc-leap
        "threshold": replace(MASKED, plain="sequential"),
        "sequential": replace(MASKED, plain="sequential"),
        "next_sequence": WINDOWS,
        **dict.fromkeys(OF_OTHER_FAMILIES, UNMEASURED),
    },
    "ar": {
        **dict.fromkeys(("lookup", "copyspec", "aggressive", "suffix", "recycling", "aded", "rasd", "auto"), COPIES),
        **dict.fromkeys(("sjd", "pjd", "zipar"), CODES),
        "seeded_jacobi": SAMPLED,
        "diffusion": replace(SUMS, spec="diffusion:name=tiny-llada"),
        "linearspec": replace(SUMS, model="tiny-nemotron", loading={"attention": "causal"}),
        **dict.fromkeys(("falcon", "longspec", "transfer"), UNMEASURED),
        **dict.fromkeys(("block", "match", "speculative", "lenience", "enrich"), SAMPLED),
        **dict.fromkeys(
            ("kseq", "rrs"),
            replace(SAMPLED, spec="model:name=tiny-llama-draft,k=3+template:widths=2-2-1+{}"),
        ),
        "typical": replace(SAMPLED, spec="medusa:name=tiny-llama-medusa+{}"),
        "lantern": replace(CODES, spec="sjd+{}"),
        "gsd": replace(CODES, spec="sjd+{}"),
    },
    "continuous": {
        "auto": replace(VECTORS, plain="sequential"),
        "mar": replace(VECTORS, spec="mar:steps=18", plain="sequential"),
        "fasthybrid": replace(VECTORS, spec="fasthybrid:steps=18,k=3,tau=0.98", plain="mar:steps=18"),
    },
    "scales": {},
}
# Further rows: methods made for text, measured on codes of images.
FURTHER = {
    "ar": {
        name: (replace(CODES, spec=spec, plain="sequential"),)
        for name, spec in {
            "lookup": "lookup:context=grid",
            "recycling": "recycling",
            "model": "model:name=tiny-llamagen-draft,k=5",
        }.items()
    }
}


WAITING = ()  # methods whose rows have no figures yet; `python benchmarks/methods.py` measures them

# The condition under which a method that does not gain here would gain.
GPU, CHECKPOINT, LENGTH, DEVICE = "a GPU", "a checkpoint", "a long context", "a second device"
STORES = ("int8", "kivi", "gear", "mustafar", "rotatekv")
READS = ("streaming", "lminfinite", "retrieval", "channels", "cake")
SHORT_PROMPTS = ("sparsekv", "triforce", "rapid", "enrich")
NEEDS: dict[str, dict[str, str]] = {
    "masked": {
        "freedave": GPU,
        "oracle": "the finished text",
        **dict.fromkeys((*OF_OTHER_FAMILIES, "next_sequence"), CHECKPOINT),
        **dict.fromkeys(("interpolate", "wedlm", "maskgit", "mlcache"), CHECKPOINT),
    },
    "ar": {
        **dict.fromkeys((*STORES, *READS, *SHORT_PROMPTS), LENGTH),
        **dict.fromkeys(("falcon", "longspec", "transfer"), CHECKPOINT),
        "pearl": DEVICE,
    },
    "continuous": {},
    "scales": {},
}
_END_TOKENS = "a forward that finds no sure token commits the surest, which is then an end token after the answer"
_SCHEDULE = "follows a schedule of one token per step by default, whatever the confidence"
_DRAFT_FORWARD = "each draft token is a forward of its own, which takes about half as long as one of this small model"
_FEW_LAYERS = "the model has few layers: what a draft forward costs beside them is not saved"
_WINDOW = "computes a window in every forward, and a model not trained for it finds few of its tokens early"
_TREE = "the draft model's first choice is nearly always right here, so that the other branches are only computed"
_LENGTH = "the draft model is right as far as it drafts, so that deciding on the length only costs"
_RULE = "as many drafted tokens stand as with the default rule, which costs less"
_STORE = "saves memory, not time: each forward decodes what it reads, and texts of 60 tokens have little to store"
_READ = "the texts are shorter than the part that is kept, so that choosing it only costs"
_NO_MODULE = "no module of this kind ships"
_REPEATED = "the answers repeat the prompt in parts too short for its drafts"
# Why a method does not gain, by family and method; "images" has those of the further rows.
REASONS: dict[str, dict[str, str]] = {
    "masked": {
        "dcd": _END_TOKENS,
        "dsb": _END_TOKENS,
        "freedave": "half the forwards, each with three times the positions, which a GPU computes at once",
        "lopa": "a line of an answer waits for the line before, whichever branch is kept, and each branch is computed",
        "interpolate": "for models trained on mixed inputs (DMax); without them the mixtures save no forward",
        "provisional": "tokens that are fed early here are committed one forward later anyway, and mixing costs",
        "selfcondition": "for models trained with it, such as DiffusionGemma",
        "smoothing": "saves no forward, and adds an expectation over the vocabulary to each",
        "counterfactual": "saves no forward, and each computes two copies of the block's open positions",
        "dus": "commits in a fixed spread of positions, which takes a few more forwards than the threshold alone",
        "grow": "looks for the length in forwards that commit nothing, and `eos` ends a row as early without them",
        "credit": "saves no forward at the default `tau`, and updates the credit of every token in each",
        "density": "prefers neighbours of known tokens, which are not the certain ones",
        "entropy": "commits what `confidence` commits, and an entropy costs more than a maximum",
        "leftmost": "commits two neighbours at once, and the second of them needs the first",
        "above_mean": "made for `saber`: the mean of sure tokens holds later ones back, and early unsure ones stay",
        "carry": _SCHEDULE,
        "fixed": _SCHEDULE,
        "timesteps": _SCHEDULE,
        "origin": "follows a random schedule, whatever the confidence",
        "maskgit": "made for the codes of images: commits by a cosine schedule with noise",
        "confident": "where no candidate is confident it follows a schedule, and commits unsure tokens",
        "dapd": "reads attention, and its bound was found for longer rows: most pairs of these are above it",
        "dawn": "saves no forward, and reads the attention of every layer",
        "denoise": "for models of random canvases, such as DiffusionGemma",
        "entropy_threshold": "saves no forward, and an entropy costs more than a maximum",
        "klass": "waits until a distribution is the same for two forwards",
        "leap": "commits only the run at the front of its window, and sure tokens behind an unsure one wait",
        "learned": "its filter was trained on shorter answers, and commits lines before the numbers that they need",
        "oracle": "decodes twice: it tells the fewest forwards that another select could need",
        "wedlm": "for windowed-causal models (WeDLM): prefers the first open positions, sure or not",
        "localleap": "saves one forward in a hundred, and looks for sure neighbours in each",
        "spacing": "sure neighbours wait for each other",
        "edit": "keeps a block open to look at its tokens again, and few of these are wrong",
        "levenshtein": "for models trained to insert and delete, such as LLaDA2.2",
        "remdm": "masks tokens again that were right, and they take forwards",
        "renoise": "for models of random canvases, such as DiffusionGemma",
        **dict.fromkeys(("ancestral", "adaptive", "defer"), "for models trained on uniform noise, such as Sumi"),
        "saber": "masks tokens again that were right, and they take forwards",
        "wino": "checks each block in a second set of rows, and few of its tokens are wrong",
        "prophet": "the gap is wide at all open positions only where `threshold` commits them too, and looking costs",
        "block": "for block-causal models, such as SDAR",
        "subblock": "for block-causal models, such as Fast-dLLM v2",
        "window": "for windowed-causal models, such as WeDLM",
        "next_sequence": "for models trained on windows after causal text (SDLM)",
        "causal": "the only cache of its families (Nemotron-Labs-Diffusion, DiffusionGemma), so that nothing compares",
        "d2cache": "reads the attention of every layer to choose a quarter of the positions",
        "dkv_greedy": "keys and values of this many tokens are stale",
        "mlcache": "for models of image codes, such as Lumina-DiMOO, whose logits change little between steps",
        "spa": "finds the changed tokens in every layer, which costs more than these short rows save",
    },
    "ar": {
        **dict.fromkeys(STORES, _STORE),
        **dict.fromkeys(READS, _READ),
        **dict.fromkeys(SHORT_PROMPTS, _READ),
        **dict.fromkeys(("falcon", "longspec", "transfer"), _NO_MODULE),
        **dict.fromkeys(("eagle", "hydra", "model", "mtp", "sorted", "rasd", "auto", "dflash"), _DRAFT_FORWARD),
        **dict.fromkeys(("del", "earlyexit", "kangaroo", "layerskip"), _FEW_LAYERS),
        **dict.fromkeys(("jacobi", "lookahead", "seeded_jacobi"), _WINDOW),
        **dict.fromkeys(("beam", "dyspec", "paths", "template"), _TREE),
        **dict.fromkeys(("calibrated", "fallback", "goodput", "heuristic", "unsure"), _LENGTH),
        **dict.fromkeys(("block", "kseq", "rrs", "match", "lenience", "topk", "typical", "bild", "fly"), _RULE),
        **dict.fromkeys(("aded", "lookup", "copyspec", "suffix", "aggressive"), _REPEATED),
        "idlm": "a forward of seven positions, three of them with the LoRA, takes over three times as long here",
        "diffusion": "each forward of the masked model computes all of its block, to draft for a model as small",
        "recycling": "computes a tree of some 20 nodes per round, and its first choices are right half the time",
        "medusa": "its heads predict one further token per round, and each computes a distribution over the vocabulary",
        "pearl": "drafts while the model verifies, and here both share one core",
        "prompts": "probe tokens after every node compute five times the positions",
        "linearspec": "a round is two forwards of the model, and one of them has 15 masks",
        "zipar": "rows that begin early do not see all of the row above",
        "pjd": "rows that begin early do not see all of the row above",
        "sjd": "the window's positions cost as much as the forwards that it saves",
        "momentum": "looks for circuits at every token, and these answers have none",
        "gsd": "finds the group of every token by its embedding, and as many drafted tokens stand",
        "lantern": "sums the neighbours of every token, and few more drafted tokens stand in these smooth images",
        "judge": "computes a head for every node, and lets one drafted token in a hundred more stand",
        "reflective": "reads the draft a second time in the same forward, at twice the positions",
        "superposed": "reads the sum of the drafts' tokens, and this model is not linear in its embeddings",
    },
    "continuous": {
        "cspd": "a sixth of the drafted vectors are accepted, and the others are sampled again",
        "seeded_jacobi": "iterates over vectors of which each changes with every one before it",
    },
    "scales": {
        "fastvar": "maps of at most 6 by 6 codes have few tokens that can be left out; `keep=0.8` keeps the quality",
    },
    "images": {
        "lookup": "a code seldom follows the same neighbours twice",
        "recycling": "computes a tree of 20 nodes per round, and sampled codes are seldom its first choices",
        "model": _DRAFT_FORWARD,
    },
}


def plans(card: Card) -> tuple[Plan, ...]:
    """The plans of a method, the main one first, with specs and reasons filled in."""
    name, family = card.name, card.family
    of_stage = OF_STAGE[family].get(card.stage) or DEFAULT[family]
    main = OF_METHOD[family].get(name, of_stage)
    main = replace(main, needs=NEEDS[family].get(name, ""), reason=REASONS[family].get(name, ""))
    further = (replace(plan, reason=REASONS["images"].get(name, "")) for plan in FURTHER.get(family, {}).get(name, ()))
    return tuple(_filled(plan, card) for plan in (main, *further))


def _filled(plan: Plan, card: Card) -> Plan:
    """The plan with both specs; of masked models, answers end at their end token with both."""
    if not plan.model:
        return plan
    spec = registry.parse(plan.spec.format(card.name) or example(card))
    plain = registry.parse(plan.plain) if plan.plain else _without(spec, card)
    if card.family == "masked":
        spec, plain = (_stopping(one) if card.name != "eos" else one for one in (spec, plain))
    return replace(plan, spec=str(spec), plain=str(plain))


def _without(spec: Spec, card: Card) -> Spec:
    """The spec without the method; if nothing is left, the default of its family."""
    kept = tuple(part for part in spec.parts if part.name != card.name)
    cache = spec.cache if spec.cache and spec.cache.name != card.name else None
    if kept and not (card.family == "ar" and card.stage == "draft"):
        return Spec(kept, cache)
    return registry.parse({"masked": "threshold"}.get(card.family, "sequential"))


def _stopping(spec: Spec) -> Spec:
    return Spec((*spec.parts, registry.parse("eos").parts[0]), spec.cache)
