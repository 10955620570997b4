"""Incompatible pairs, found by trying: pairs of methods, and each method with families and features of requests.

`records()` tries them all without a forward and returns a line for each refusal. A method is tried in every setting
that changes its compatibility.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pardec.drivers import driver_of
from pardec.models.decoder import Decoder
from pardec.models.errors import ModelError, PardecError
from pardec.models.model import LanguageModel
from pardec.requests.settings import Settings
from pardec.samplers import registry
from pardec.samplers.cards import SINGLE
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.ops.token_automaton import TokenAutomaton
from pardec.samplers.request import Allowed, ConstrainedSpan, Request
from pardec.samplers.speculative import compatibility as speculative
from tests.samplers import ar_toys, toys

FILE = Path(__file__).with_name("refused_pairs.txt")
NAMED = "name=toy,k=3"
MODULES = ("eagle", "medusa", "hydra", "dflash", "falcon", "kangaroo", "longspec", "mtp", "prompts", "transfer")
CHECKPOINTS = ("diffusion", "model", "pearl", "sorted", "triforce")
MODEL = f"model:{NAMED}"
# Every setting of a method that changes its compatibility; methods that are not listed have their defaults. Where two
# families have a method of one name, the family comes before it.
SETTINGS: dict[str, tuple[str, ...]] = {
    "learned": ("learned:filter=tiny-dream,force=true",),
    "levenshtein": ("levenshtein:delete=3,split=4",),
    "adablock": ("adablock:delimiters=3",),
    "freedave": ("freedave", "freedave:subset=true"),
    "threshold": ("threshold", "threshold:fall=0.1", "threshold:tau=-0.5"),
    "localleap": ("localleap", "localleap:relaxed=-0.5"),
    "fixed": ("fixed", "fixed:order=random"),
    "maskgit": ("maskgit", "maskgit:noise=0"),
    "entropy_threshold": ("entropy_threshold", "entropy_threshold:floor=linear"),
    "wino": ("wino", "wino:verify=0"),
    "remdm": ("remdm", "remdm:rounds=0"),
    "edit": ("edit", "edit:tau=1"),
    "prophet": ("prophet", "prophet:progress=steps", "prophet:progress=committed"),
    "dual": ("dual", "dual:refresh=8", "dual:reference=true"),
    "vicinity": ("vicinity", "vicinity:warmup=0"),
    "window": ("window", "window:slide=false"),
    **{name: (f"{name}:{NAMED}",) for name in (*MODULES, *CHECKPOINTS)},
    "model": (MODEL, f"{MODEL},map=text", f"{MODEL},map=direct", f"{MODEL},map=text,keep=true"),
    "auto": (
        "auto",
        'auto:model="model:name=toy,k=3",copy="lookup:k=3"',
        'auto:model="layerskip:skip=search",copy="lookup:k=3"',
        'auto:model="longspec:name=toy,k=3",copy="lookup:k=3"',
        'auto:model="rapid"',
        'auto:model="model:name=toy,k=3,map=text,keep=true"',
    ),
    "rasd": (
        'rasd:model="model:name=toy,k=2"',
        'rasd:model="sorted:name=toy,k=2"',
        'rasd:model="linearspec:mask=5"',
        'rasd:model="model:name=toy,k=3,map=text,keep=true"',
    ),
    "linearspec": ("linearspec:mask=5",),
    "ar suffix": ("suffix", "suffix:tree=true", "suffix:keep=true"),
    "layerskip": ("layerskip", "layerskip:skip=search"),
    "jacobi": ("jacobi", "jacobi:policy=block,exit_iterations=2", "jacobi:policy=block,exit_tokens=2"),
    "seeded_jacobi": ("seeded_jacobi", "seeded_jacobi:policy=block,exit_iterations=2"),
    "sparsekv": ("sparsekv", "sparsekv:read=streaming", "sparsekv:read=channels"),
    "triforce": (f"triforce:{NAMED.replace('k=3', 'k=2')}", "triforce:name=toy,read=streaming"),
    "recycling": ("recycling", "recycling:keep=true"),
    "aded": ("aded", "aded:keep=true", "aded:keep=true,update=false"),
    "paths": ("paths", "paths:top=true"),
    "calibrated": ("calibrated", "calibrated:cost=0.4"),
    "match": ("match", "match:noise=seeded"),
    "rrs": ("rrs", "rrs:replacement=true"),
    "judge": ("judge:head=tiny-llama",),
    "reflective": ('reflective:probe=""',),
    "bild": ("bild", "bild:rollback=0"),
    "gsd": ("gsd", "gsd:group=0"),
}
# What a method needs, unless the other one of the pair provides it.
BESIDE = {"dkv_greedy": "fixed:order=random", "denoise": "renoise", "selfcondition": "renoise", "defer": "ancestral"}
BESIDE |= {"threshold:tau=-0.5": "entropy", "localleap:relaxed=-0.5": "entropy", "prophet:progress=steps": "fixed"}
PROMPT = [3, 1, 4, 1]


def settings(family: str) -> list[tuple[str, str, str]]:
    """Name, stage and spec of every method of a family of models, in each of its settings."""
    cards = [card for card in registry.cards() if card.family == family and card.file.startswith(SOURCE)]
    each = [SETTINGS.get(f"{family} {card.name}", SETTINGS.get(card.name, (card.name,))) for card in cards]
    return [(card.name, card.stage, spec) for card, specs in zip(cards, each, strict=True) for spec in specs]


SOURCE = str(Path(registry.__file__).parent)


def joined(*parts: tuple[str, str, str]) -> str:
    """The spec of some methods; a cache alone is combined with the default sampler of its family."""
    specs = [spec for _, stage, spec in parts if stage != "cache"]
    return "+".join(specs) + "".join(f"@{spec}" for _, stage, spec in parts if stage == "cache")


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0].replace(SOURCE, "SAMPLERS")


# --- masked ---


def masked_families() -> dict[str, LanguageModel]:
    """A toy of every kind of attention, one of random canvases, and one with a sliding window."""
    models = {name: toys.toy(name) for name in ("llada", "dream", "sdar", "wedlm", "nemotron", "sdlm")}
    plain = models["llada"]
    models["uniform"] = replace(
        models["sdar"], decoding_config=replace(models["sdar"].decoding_config, uniform=True), name="uniform"
    )
    models["windows"] = _windowed(plain)
    return models


def _windowed(model: LanguageModel) -> LanguageModel:
    """The model with layers that see eight positions."""
    stack: Any = model.decoder
    decoder = Decoder(replace(stack.config, window=8))
    decoder.load_state_dict(stack.state_dict())
    return replace(model, decoder=decoder.eval().requires_grad_(False), name="windows")


def canvas_request(model: LanguageModel, **features: Any) -> Request:
    """A request for one row of two open blocks."""
    mask = model.decoding_config.mask_id
    absolute = model.decoding_config.attention == "block-causal"
    return toys.request([[*PROMPT, *[mask] * 8]], [len(PROMPT)], absolute=absolute, **features)  # type: ignore[list-item]


def features(width: int, vocab: int) -> dict[str, dict[str, Any]]:
    """The features that a request for one row of `width` positions may have."""
    sets, span = torch.ones(1, vocab, dtype=torch.bool), torch.zeros(width, dtype=torch.int64)
    automaton = TokenAutomaton(1, np.ones(vocab, np.int64), np.array([[1, 0]]), np.ones(1, dtype=bool))
    return {
        "nothing": {},
        "logprobs": {"logprobs": 1},
        "allowed": {"allowed": Allowed(sets, (span,))},
        "constrained spans": {"constrained_spans": ((ConstrainedSpan(len(PROMPT), automaton),),)},
        "conditions": {"conditions": (object(),)},
        "cfg": {"cfg": 1.5},
        "temperature": {"temperature": 1.0},
        "repetition_penalty": {"repetition_penalty": 1.2},
        "min_new_tokens": {"min_new_tokens": 2},
        "stop": {"stops": (object(),)},
        "grammars": {"grammars": (object(),)},
        "processors": {"processors": (lambda ids, scores: scores,)},
        "four texts": {"samples": (3,)},
    }


def masked_error(model: LanguageModel, spec: str, **features: Any) -> str:
    """Why a masked spec does not decode; "" if it would."""
    try:
        sampler: Any = driver_of(model).sampler(Settings(sampler=spec))
        asked = canvas_request(model, **features)
        for stage in sampler.stages:
            stage.admit(asked, sampler)
        MaskedLoop(model, sampler, asked)
    except PardecError as error:
        if not (isinstance(error, ModelError) and "generates no images" in str(error)):  # as toys do not
            return first_line(error)
    return ""


# The family of the toys that a method is for, where it is not all of them.
HOME = {"block": "sdar", "subblock": "sdar", "window": "wedlm", "causal": "nemotron", "next_sequence": "sdlm"}
HOME |= dict.fromkeys(("renoise", "denoise", "selfcondition", "ancestral", "adaptive", "defer"), "uniform")
MASKED_FEATURES = ("logprobs", "allowed", "constrained spans", "conditions", "cfg", "temperature", "repetition_penalty")


Asked = tuple[str, str, str]  # one, the other, and what else is asked; "" where there is none


def masked_records() -> Iterator[tuple[Asked, str]]:
    """For masked methods: each combination, and the first line of its refusal, "" if it is accepted."""
    models, every = masked_families(), settings("masked")
    options = features(len(PROMPT) + 8, toys.VOCAB)
    for one in every:
        home, spec = models[HOME.get(one[0], "llada")], joined(*_completed(one))
        for family, model in models.items():
            yield (one[2], f"for {family}", ""), masked_error(model, spec)
        for name in MASKED_FEATURES:
            yield (one[2], f"with {name}", ""), masked_error(home, spec, **options[name])
    for one, other in pairs(every):
        spec = joined(*_completed(one, other))
        home = models[HOME.get(one[0]) or HOME.get(other[0]) or "llada"]
        yield (one[2], other[2], ""), masked_error(home, spec)
        if "branch" in (one[1], other[1]) and "cache" not in (one[1], other[1]):  # with the cache that the family takes
            yield (one[2], other[2], "for wedlm"), masked_error(models["wedlm"], spec)


def pairs(every: list[tuple[str, str, str]]) -> Iterator[tuple[tuple[str, str, str], tuple[str, str, str]]]:
    """Two methods that a spec can have."""
    for one, other in combinations(every, 2):
        if one[0] != other[0] and (one[1] != other[1] or one[1] not in SINGLE):
            yield one, other


def _completed(*parts: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    """The parts, with those that one of them needs, unless another part has that stage."""
    found = list(parts)
    for name, _, spec in parts:
        if beside := BESIDE.get(spec, BESIDE.get(name)):
            kind = registry.find(beside.partition(":")[0], "masked").stage
            if all(kind != stage for _, stage, _ in found):
                found.append((beside.partition(":")[0], kind, beside))
    if all(stage == "cache" for _, stage, _ in found):
        found.append(("threshold", "select", "threshold"))
    return found


# --- autoregressive ---


def ar_error(model: LanguageModel, spec: str, *, sampling: bool = False, **features: Any) -> str:
    """Why a spec of the verify loop does not decode; "" if it would, with the drafting models that it names."""
    try:
        sampler: Any = driver_of(model).sampler(Settings(sampler=spec, temperature=float(sampling)))
        asked = ar_toys.request([PROMPT], 8, **{"temperature": float(sampling), **features})
        for stage in sampler.stages:
            stage.admit(asked, sampler)
        speculative.check(sampler, model, asked, published=True)
    except PardecError as error:
        return first_line(error)
    return ""


def ar_families() -> dict[str, LanguageModel]:
    plain = ar_toys.toy_ar(0)
    return {"plain": plain, "windows": _windowed(plain)}


def ar_records() -> Iterator[tuple[Asked, str]]:
    """For methods of the verify loop: each combination, and the first line of its refusal, "" if it is accepted."""
    models, every = ar_families(), settings("ar")
    plain, options = models["plain"], features(len(PROMPT) + 8, 5)
    for one in every:
        for beside, spec in _beside_drafters(one):
            for family, model in models.items():
                yield (one[2], f"for {family}", beside), ar_error(model, spec)
            for name, own in options.items():
                yield (one[2], f"with {name}", beside), ar_error(plain, spec, sampling=name == "temperature", **own)
    for one, other in pairs(every):
        for beside, spec in _beside_drafters(one, other):
            cold, warm = ar_error(plain, spec), ar_error(plain, spec, sampling=True)
            yield (one[2], other[2], beside), cold
            if warm != cold:
                yield (one[2], other[2], f"{beside} with temperature".strip()), warm


def _beside_drafters(*parts: tuple[str, str, str]) -> list[tuple[str, str]]:
    """The spec with the default drafter, and with a draft model; only the parts if one of them drafts."""
    stages = {stage for _, stage, _ in parts}
    specs = [("", joined(*parts))] if stages != {"cache"} else []
    if stages & {"draft", "texts"}:
        return specs
    return [*specs, ("beside a model", joined(("model", "draft", MODEL), *parts))]


# --- the file ---


def records() -> str:
    """Every refusal: its first line with `*` for the other's name, and below it the refused combinations.

    Combinations without a line are accepted.
    """
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for (one, other, more), why in (*masked_records(), *ar_records()):
        if why:
            name = re.escape(re.split("[: ]", other)[0])
            pair = not other.startswith(("for ", "with "))
            said = re.sub(rf"(?<![\w-]){name}(?![\w=-])", "*", why) if pair else why
            grouped.setdefault((said, one, more), []).append(other)
    lines: dict[str, list[str]] = {}
    for (said, one, more), others in grouped.items():
        lines.setdefault(said, []).append(f"    {' '.join(filter(None, (one, more)))} | {'; '.join(others)}")
    return "".join(f"{said}\n" + "".join(f"{line}\n" for line in each) for said, each in lines.items())


if __name__ == "__main__":
    FILE.write_text(records())
