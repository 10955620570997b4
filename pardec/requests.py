"""One call of `generate`, checked and ready for the loop: everything that can be refused is refused here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pardec import allowed
from pardec.early import check_block, check_family
from pardec.grammar import within
from pardec.models.errors import SpecError
from pardec.picture_requests import Conditions, conditions, refuse_pictures
from pardec.prompts import Row, rows
from pardec.samplers import registry
from pardec.samplers.contracts import Allowed, Request, Sampler
from pardec.samplers.painting import Drawing
from pardec.samplers.rng import Keyed, row_seeds
from pardec.samplers.spec import Part, Spec, parse
from pardec.samplers.verifying import Speculation
from pardec.settings import Settings

if TYPE_CHECKING:
    from pardec.models.language_model import LanguageModel
    from pardec.samplers.events import Event

BLOCK = 32  # the default block, where the request is not shorter


@dataclass(frozen=True, slots=True)
class Call:
    """What a loop is given, and the seed of each row."""

    sampler: Sampler | Speculation
    request: Request
    seeds: tuple[int, ...]
    callback: Callable[[Event], object] | None

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """What row `row` generated, and how many tokens count.

        Args:
            canvas: its final ids, right-padded or not; it may end with the row's last token.

        Returns:
            The ids behind the prompt, cut after the first end token that was generated; and the number of generated
            ones before that end token, the count behind every rate. What a template gave is in the first only.
        """
        start = self.request.prompts[row]
        before = self.request.canvases[row][start:].tolist()
        made = list(canvas[start : start + len(before)])
        fresh = [new != old for new, old in zip(made, before, strict=False)]
        ends = (at for at, new in enumerate(fresh) if new and made[at] in self.request.stop_ids)
        end = next(ends, len(made))
        return made[: end + 1], sum(fresh[:end])

    def take(self, rows: Sequence[int]) -> Call:
        """The same request with these rows only; each keeps its seed, so it gives the same tokens."""
        seeds = tuple(self.seeds[row] for row in rows)
        request = replace(
            self.request,
            canvases=tuple(self.request.canvases[row] for row in rows),
            prompts=tuple(self.request.prompts[row] for row in rows),
            conditions=tuple(self.request.conditions[row] for row in rows) if self.request.conditions else (),
            prefix=None if self.request.prefix is None else self.request.prefix.take(rows),
            source=Keyed(seeds) if isinstance(self.request.source, Keyed) else self.request.source,
            allowed=None if self.request.allowed is None else self.request.allowed.take(rows),
        )
        return replace(self, request=request, seeds=seeds)

    def seeded(self, seeds: Sequence[int]) -> Call:
        """The same request with other seeds, one a row."""
        return replace(self, seeds=tuple(seeds), request=replace(self.request, source=Keyed(tuple(seeds))))

    @property
    def lengths(self) -> list[int]:
        """Per row, how many tokens its canvas has."""
        return [len(canvas) for canvas in self.request.canvases]

    @property
    def prompts(self) -> tuple[int, ...]:
        """Per row, how many tokens are given before the generated region."""
        return self.request.prompts

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """End tokens."""
        return self.request.stop_ids

    @property
    def constraints(self) -> list[str | None]:
        """A short name per row of what `allowed` says of it; equal names, equal constraints."""
        return allowed.digest(self.request.allowed, self.request.prompts)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments as resolved, as JSON can hold them; what is allowed goes by the short name of each row."""
        request = self.request
        kept = {n: getattr(request, n) for n in ("block_length", "absolute", "temperature", "top_k", "top_p", "cfg")}
        new = max(len(canvas) - start for canvas, start in zip(request.canvases, request.prompts, strict=True))
        names = self.constraints
        same = names[0] if len(set(names)) == 1 else names
        kept |= {"cfg_interval": request.cfg_interval} if request.conditions else {}
        away = [one.negative for one in request.conditions]
        if any(text is not None for text in away):
            kept |= {"negative_prompt": away[0] if len(set(away)) == 1 else [text or "" for text in away]}
        return {"max_new_tokens": new, **kept, "stop_ids": list(request.stop_ids), "allowed": same}

    @property
    def shown(self) -> list[str | int | None] | None:
        """Per row of pictures, what it is to show: the caption, the class, None for features; None for text."""
        made = self.request.conditions
        return [one.text if one.label is None else one.label for one in made] if made else None


def prepare(model: LanguageModel, prompt: Any, settings: Settings) -> Call:
    """Reads the prompt and resolves every argument for this model; SpecError names what cannot work."""
    pictures: Conditions | None = None
    sampler = _sampler(model, settings)
    if model.imaging is not None:
        pictures = conditions(model, model.imaging, prompt, settings)
        given = pictures.rows
    else:
        refuse_pictures(model, settings)
        check_family(model.name, model.facts.masked, settings)
        given = rows(model, prompt, settings.input_ids, settings.template, settings.max_new_tokens)
    check_length(model, [len(row.canvas) for row in given])
    stop_ids = _stop_ids(model, settings)
    seeds = seeds_of(settings, len(given))
    block_causal = model.facts.attention == "block-causal"
    request = Request(
        canvases=tuple(row.canvas for row in given),
        prompts=tuple(len(row.prompt) for row in given),
        block_length=_block_length(model, settings, given),
        source=settings.source or Keyed(seeds),
        absolute=block_causal or settings.block_align == "absolute",
        temperature=float(settings.temperature),
        top_k=settings.top_k,
        top_p=settings.top_p,
        cfg=settings.cfg,
        cfg_interval=settings.cfg_interval,
        conditions=() if pictures is None else pictures.conditions,
        prefix=None if pictures is None else pictures.prefix,
        stop_ids=stop_ids,
        allowed=_allowed(model, settings, given),
        processors=tuple(settings.logits_processor or ()),
    )
    return Call(sampler, request, seeds, settings.callback)


def _allowed(model: LanguageModel, settings: Settings, given: list[Row]) -> Allowed | None:
    asked = allowed.read(model, settings.allowed, given)
    return asked if model.imaging is None else within(model.imaging.layout, asked, given, model.vocab_size)


def seeds_of(settings: Settings, count: int) -> tuple[int, ...]:
    """One seed a row. Raises SpecError where a list has another length."""
    if not isinstance(settings.seed, Sequence):
        return row_seeds(int(settings.seed), count)
    if len(settings.seed) != count:
        raise SpecError(f"{len(settings.seed)} seeds for {count} rows", hint="give one seed, or one a row")
    return tuple(int(seed) for seed in settings.seed)


def _sampler(model: LanguageModel, settings: Settings) -> Sampler | Speculation:
    """The sampler that runs; a masked spec without a cache takes the exact one of the family, if there is one."""
    given, attention = settings.sampler, model.facts.attention
    if not model.facts.masked:
        made = registry.resolve(given, "ar", sampling=settings.temperature > 0)
        assert isinstance(made, Speculation), "the family says so"
        if settings.temperature > 0 and getattr(made.accept, "argmax", False):
            raise SpecError(
                f"{made.spec.parts[-1].name!r} keeps the likeliest tokens, and "
                f"temperature={settings.temperature} asks for a sample",
                hint="accept with speculative or match, or leave temperature out",
            )
        return made
    if isinstance(given, Speculation | Drawing):
        whom = registry.OF["ar" if isinstance(given, Speculation) else "continuous"]
        raise SpecError(f"{given.spec} is for {whom} and {model.name} is masked", hint="name another sampler")
    sampler = registry.resolve(given, "masked")
    if attention == "block-causal" and not isinstance(given, Sampler) and _names_no_cache(given):
        with suppress(SpecError):  # a stage that cannot go with it keeps what it can go with
            sampler = registry.resolve(replace(sampler.spec, cache=Part("block")), "masked")
    needs = getattr(sampler.cache, "attention", attention)
    if needs != attention:
        assert sampler.spec.cache is not None, "a resolved spec names its cache"
        raise SpecError(
            f"the cache {sampler.spec.cache.name!r} is for {needs} models and {model.name} is {attention}",
            hint='"pardec list samplers --stage cache" shows the others',
        )
    return sampler


def _names_no_cache(given: str | Spec | None) -> bool:
    return given is None or parse(given).cache is None


def check_length(model: LanguageModel, lengths: list[int]) -> None:
    """Refuses rows longer than the model has positions."""
    most = min(filter(None, (model.max_positions, model.limit)), default=None)
    if most is not None and max(lengths) > most:
        row = lengths.index(max(lengths))
        raise SpecError(
            f"row {row} needs {lengths[row]} positions and {model.name} has {most}",
            hint="shorten the prompt or ask for fewer new tokens",
        )


def _stop_ids(model: LanguageModel, settings: Settings) -> tuple[int, ...]:
    given = settings.stop_ids
    if given is None:
        return () if settings.template is not None else tuple(model.facts.eos_ids)
    ids = (given,) if isinstance(given, int) else tuple(given)
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < model.vocab_size:
            raise SpecError(
                f"stop_ids holds {i!r}, which is no id of the vocabulary of {model.vocab_size}",
                hint="stop_ids=[2] stops at token 2; [] never stops",
            )
    return ids


def _block_length(model: LanguageModel, settings: Settings, given: list[Row]) -> int:
    longest = max(len(row.rest) for row in given)
    if not model.facts.masked:
        return 1
    fixed = model.facts.block if model.facts.attention == "block-causal" else None
    asked = settings.block_length
    check_block(model.name, asked, longest, fixed)
    return fixed or asked or min(BLOCK, longest)
