"""`PardecLM`: lm-eval's requests, answered by a pardec model."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, handle_arg_string, make_disjoint_window
from tqdm import tqdm

from pardec.models.errors import SpecError
from pardec.samplers import registry

from ...api import Model, load
from ...requests.settings import Settings
from .likelihood import Likelihood, key_of
from .requests import Generation, generation, separate_defaults, split_arguments
from .token_probabilities import Batches, TokenProbabilities

_AUTO = 64  # rows that batch_size="auto" begins with
_WINDOW = 2048  # tokens of a window, where a checkpoint names no length
_log = logging.getLogger("lm_eval.pardec")  # lm-eval's handler and level


class PardecLM(TemplateLM):  # type: ignore[misc]
    """The model `pardec` of lm-evaluation-harness.

    Args:
        pretrained: what `pardec.load` takes, or a loaded `Model`.
        batch_size: rows of a forward; "auto" begins with `max_batch_size` (64) and halves it when memory runs out.
        device: a torch device; None chooses.
        max_length: prompt and answer together, in tokens; None is the checkpoint's length. Contexts that are longer
            lose their beginning.
        add_bos_token: whether texts begin with the tokenizer's first token; None leaves it to the tokenizer, as
            lm-eval's `hf` does. A text that begins with the prefix token gets none.
        prefix_token_id: stands before a text that has nothing before it; None is the first token, or the end token.
        seed: None takes torch's, which lm-eval sets from --seed. What a request draws depends on it and on the
            request, not on the batch or the order.
        likelihood, mc_num, check_greedy: how masked models score answers; see `likelihood.Likelihood`.
        arguments: dtype, device_map, revision, offline, mask_id, block and quantize of `pardec.load`; sampler,
            max_new_tokens, min_new_tokens, block_length, temperature, top_k, top_p, min_p, repetition_penalty, cfg and
            block_align of `Model.generate`, where a request does not say otherwise.

    Raises:
        SpecError: an argument that is unknown or cannot work.
        ModelError: the model cannot be loaded.
    """

    def __init__(
        self,
        pretrained: str | Path | Model,
        *,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        seed: int | None = None,
        likelihood: str = "mc",
        mc_num: int = 128,
        check_greedy: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__()
        arguments.pop("trust_remote_code", None)  # lm-eval's, for its data sets: no code of a checkpoint is run here
        loading, self.defaults = separate_defaults(arguments)
        sampler: Any = Settings.of(self.defaults).sampler
        registry.resolve(sampler)  # what is misspelt is refused before weights are read
        self.specs: set[str] = set()  # samplers that have run, as resolved for the model
        if not isinstance(pretrained, Model):
            pretrained = load(pretrained, device=device or "auto", **loading)
        self.model = pretrained
        self.tokenizer = self.model.tokenizer
        if self.tokenizer is None:
            raise SpecError(
                f"{self.model.name} comes without a tokenizer, and lm-eval asks in text",
                hint="put tokenizer.json beside the weights",
            )
        self.add_bos_token, self._prefix = add_bos_token, prefix_token_id
        inner = self.model.language_model
        self._device = inner.device
        self._limit = min(filter(None, (inner.max_positions, inner.limit, max_length)), default=None)
        self.seed = torch.initial_seed() if seed is None else seed
        auto = isinstance(batch_size, str) and batch_size.startswith("auto")
        self.batches = Batches(int(max_batch_size or _AUTO) if auto else int(batch_size), auto=auto)
        if self.batches.size < 1:
            raise SpecError(f"batch_size is at least 1, got {batch_size}", hint='batch_size=8, or "auto"')
        self.likelihood = Likelihood(
            TokenProbabilities(inner, self.batches, cfg=self.defaults.get("cfg")),
            kind=likelihood,
            mc_num=mc_num,
            check_greedy=check_greedy,
        )

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> PardecLM:
        """From `pretrained=...,sampler=...`; values in quotes may hold commas, which lm-eval's own reader splits at."""
        given = {name: handle_arg_string(value) for name, value in split_arguments(arg_string or "").items()}
        return cls(**given, **{key: value for key, value in (additional_config or {}).items() if value is not None})

    # --- what lm-eval asks about the model ---

    @property
    def eot_token_id(self) -> int:
        decoding_config = self.model.language_model.decoding_config
        return decoding_config.eos_ids[0] if decoding_config.eos_ids else decoding_config.pad_id

    @property
    def prefix_token_id(self) -> int:
        """Stands before a text that has nothing before it."""
        ids = (self._prefix, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.eot_token_id)
        return int(next(token for token in ids if token is not None))

    @property
    def max_length(self) -> int:
        return self._limit or _WINDOW

    @property
    def batch_size(self) -> int:
        return self.batches.size

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path or self.model.name).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as the text that the checkpoint was trained on."""
        if not self.tokenizer.chat_template:
            raise SpecError(f"{self.model.name} has no chat template", hint="leave --apply_chat_template out")
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; None is `add_bos_token`, and False for a text that begins with the prefix, as templates' do."""
        if add_special_tokens is None:
            return self._encoded(string, self.tokenizer.decode([self.prefix_token_id]), **kwargs)
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens, **kwargs)["input_ids"])

    def _encoded(self, string: str, start: str | None, **given: Any) -> list[int]:
        """Token ids, with the tokenizer's first one as `add_bos_token` says; none before a text that has `start`."""
        added = False if start and string.startswith(start) else self.add_bos_token
        if added is not None:
            given["add_special_tokens"] = added
        return list(self.tokenizer(string, **given)["input_ids"])

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval's results record of the model: its arguments, the samplers as resolved, the versions."""
        masked = self.model.language_model.decoding_config.masked
        scored = {"likelihood": self.likelihood.kind, "mc_num": self.likelihood.mc_num} if masked else {}
        made = {"model": self.model.name, **self.defaults, "specs": sorted(self.specs), "seed": self.seed}
        return {"pardec": {**made, **scored, **self.model.environment()}}

    # --- the three kinds of request ---

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """A text a request, cut before the first of its `until` texts."""
        read = [generation(request.args[1], self.defaults) for request in requests]
        prompts = [self._prompt(request.args[0], made) for request, made in zip(requests, read, strict=True)]
        asked = [made.after(len(prompt)) for made, prompt in zip(read, prompts, strict=True)]
        seen: Counter[tuple[int, ...]] = Counter()
        seeds = []
        for prompt, arguments in zip(prompts, asked, strict=True):
            seeds.append(key_of(arguments.get("seed", self.seed), prompt, seen[tuple(prompt)]))
            seen[tuple(prompt)] += 1
        groups: dict[str, list[int]] = {}
        for i, arguments in enumerate(asked):
            key = json.dumps([arguments, read[i].no_repeat_ngram_size], sort_keys=True)
            groups.setdefault(key, []).append(i)
        texts: dict[int, str] = {}
        with tqdm(total=len(requests), desc="Running generate_until requests", disable=disable_tqdm) as bar:
            for group in groups.values():
                arguments = self._processed(asked[group[0]], read[group[0]].no_repeat_ngram_size)
                group.sort(key=lambda i: -len(prompts[i]))

                def decode(rows: Sequence[int], arguments: dict[str, Any] = arguments) -> dict[int, str]:
                    given = [prompts[i] for i in rows]
                    return dict(zip(rows, self._generate(given, arguments, [seeds[i] for i in rows]), strict=True))

                for count, found in self.batches.run(group, decode):
                    for i, text in found.items():
                        self.cache_hook.add_partial("generate_until", requests[i].args, text)
                    texts |= found
                    bar.update(count)
        return [texts[i] for i in range(len(requests))]

    def _processed(self, arguments: dict[str, Any], ngram: int) -> dict[str, Any]:
        """The arguments with what keeps runs of `ngram` tokens from standing twice; 0 is off."""
        if not ngram:
            return arguments
        if self.model.language_model.decoding_config.masked:
            raise SpecError(
                f"no_repeat_ngram_size={ngram} reads a text from its beginning; {self.model.name} fills it anywhere",
                hint="leave it out; repetition_penalty works there",
            )
        if ngram < 0:
            raise SpecError(f"no_repeat_ngram_size must be at least 1, got {ngram}", hint="0 is off")
        from transformers import NoRepeatNGramLogitsProcessor

        return {**arguments, "logits_processor": [NoRepeatNGramLogitsProcessor(ngram)]}

    def _prompt(self, context: str, made: Generation) -> list[int]:
        """Ids of a context, with room after them for what is to be generated."""
        # lm-eval's `hf` looks for the tokenizer's own token here, and for the prefix where it scores.
        ids = self._encoded(context, self.tokenizer.bos_token) or [self.prefix_token_id]
        if self._limit is None:
            return ids
        new = Settings.of(made.arguments).max_new_tokens
        if made.max_length is not None and new >= self._limit:  # it decides alone; lm-eval's `hf` gives up here
            return self._fitting(ids, self._limit - 1)
        if new >= self._limit:
            raise SpecError(
                f"{new} new tokens leave no room for a prompt in the {self._limit} of {self.model.name}",
                hint="--gen_kwargs max_gen_toks=128 asks for fewer",
            )
        return self._fitting(ids, self._limit - new)

    def _generate(self, prompts: list[list[int]], arguments: dict[str, Any], seeds: list[int]) -> list[str]:
        given = {**arguments, "seed": seeds, "stop_ids": list(self.model.language_model.decoding_config.eos_ids)}
        result = self.model.generate(input_ids=prompts, **given)
        self.specs.add(result.spec)
        assert result.text is not None, "there is a tokenizer"
        return result.text

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        found = self._score([(context, answer) for _, context, answer in requests], disable_tqdm)
        for (texts, _, _), value in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, value)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows of the model's length, each token predicted once."""
        room = self.max_length - (1 if self.model.language_model.decoding_config.masked else 0)
        windows = [
            [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(self.tok_encode(request.args[0]), self.prefix_token_id, room, 1)
            ]
            for request in requests
        ]
        found = iter(self._score([pair for pairs in windows for pair in pairs], disable_tqdm))
        values = [sum(next(found)[0] for _ in pairs) for pairs in windows]
        for request, value in zip(requests, values, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return values

    def _score(self, pairs: list[tuple[list[int], list[int]]], disable_tqdm: bool) -> list[tuple[float, bool]]:
        """Scores (context ids, answer ids), the longest first, a batch of them at a time."""
        room = self.max_length + (
            0 if self.model.language_model.decoding_config.masked else 1
        )  # the last token is not fed
        fitting = []
        for context, answer in pairs:
            if len(answer) >= room:
                raise SpecError(
                    f"an answer of {len(answer)} tokens does not fit the {self.max_length} of {self.model.name}",
                    hint="leave the task out, or raise max_length if the checkpoint has more positions",
                )
            fitting.append((self._fitting(context, room - len(answer)), answer))
        order = sorted(range(len(pairs)), key=lambda i: -len(fitting[i][0] + fitting[i][1]))
        made: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(pairs), desc="Running loglikelihood requests", disable=disable_tqdm) as bar:
            size = self.batches.size  # memory may make it smaller on the way
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                made.update(zip(rows, self.likelihood.score([fitting[i] for i in rows], seed=self.seed), strict=True))
                bar.update(len(rows))
        return [made[i] for i in range(len(pairs))]

    def _fitting(self, ids: list[int], room: int) -> list[int]:
        """The last `room` ids."""
        if len(ids) > room:
            _log.warning("a context of %d tokens loses its first %d", len(ids), len(ids) - room)
        return ids[-room:]
