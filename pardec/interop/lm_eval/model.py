"""`PardecLM`: a pardec model that answers lm-eval's requests."""

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
from ...likelihood import Likelihood, key_of
from ...requests.settings import Settings
from ...token_probabilities import Batches, TokenProbabilities
from .requests import Generation, generation, separate_defaults, split_arguments

_LM_EVAL_DEVICE = "cuda:0"  # lm-eval's value if the user named no device
_AUTO = 64  # initial rows of batch_size="auto"
_WINDOW = 2048  # tokens of a window if the checkpoint has no maximum length
_log = logging.getLogger("lm_eval.pardec")  # lm-eval's handler and level


def _device(device: str | None) -> str:
    """The device to load to: "auto" for None, and for lm-eval's default on a machine without CUDA."""
    if device == _LM_EVAL_DEVICE and not torch.cuda.is_available():
        _log.warning("there is no %s, lm-eval's default; name another with --device", device)
        return "auto"
    return device or "auto"


class PardecLM(TemplateLM):  # type: ignore[misc]
    """The model `pardec` of lm-evaluation-harness.

    Args:
        pretrained: a name or folder for `pardec.load`, or a loaded `Model`.
        batch_size: rows per forward; "auto" starts with `max_batch_size` (64) and halves it when memory runs out.
        device: a torch device; None chooses one, and so does lm-eval's own default, cuda:0, where there is no CUDA.
        max_length: most tokens of prompt and answer together; None is the checkpoint's length. Longer contexts are
            truncated at the beginning.
        add_bos_token: whether texts begin with the tokenizer's BOS token; None leaves it to the tokenizer, as
            lm-eval's `hf` does. A text that already begins with the prefix token gets none.
        prefix_token_id: the token before an empty context; None is the BOS token, or else the EOS token.
        seed: None takes torch's, which lm-eval sets from --seed. The random numbers of a request depend on the seed
            and the request, not on the batch or the order.
        likelihood, mc_num, check_greedy: how masked models score answers; see `likelihood.Likelihood`.
        arguments: dtype, device_map, revision, offline, mask_id, block, quantize and adapter of `pardec.load`; and
            defaults for the sampler, lengths, sampling and guidance of `Model.generate`, under its names.

    Raises:
        SpecError: an unknown or invalid argument.
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
        arguments.pop("trust_remote_code", None)  # lm-eval passes it for its data sets; pardec runs no remote code
        loading, self.defaults = separate_defaults(arguments)
        sampler: Any = Settings.of(self.defaults).sampler
        registry.resolve(sampler)  # raises for a misspelt spec before weights are read
        self.specs: set[str] = set()  # resolved specs of the samplers that have run
        if not isinstance(pretrained, Model):
            pretrained = load(pretrained, device=_device(device), **loading)
        self.model = pretrained
        self.tokenizer = self.model.tokenizer
        if self.tokenizer is None:
            raise SpecError(
                f"{self.model.name} has no tokenizer, and lm-eval's requests are text",
                hint="put tokenizer.json next to the weights",
            )
        self.add_bos_token, self._prefix = add_bos_token, prefix_token_id
        language_model = self.model.language_model
        self._device = language_model.device
        self._limit = min(filter(None, (language_model.max_positions, language_model.limit, max_length)), default=None)
        self.seed = torch.initial_seed() if seed is None else seed
        auto = isinstance(batch_size, str) and batch_size.startswith("auto")
        self.batches = Batches(int(max_batch_size or _AUTO) if auto else int(batch_size), auto=auto)
        if self.batches.size < 1:
            raise SpecError(f"batch_size must be at least 1, got {batch_size}", hint='batch_size=8, or "auto"')
        self.likelihood = Likelihood(
            TokenProbabilities(language_model, self.batches, cfg=self.defaults.get("cfg")),
            kind=likelihood,
            mc_num=mc_num,
            check_greedy=check_greedy,
        )

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> PardecLM:
        """Parses `pretrained=...,sampler=...`; unlike in lm-eval's own parser, quoted values may contain commas."""
        arguments = {name: handle_arg_string(value) for name, value in split_arguments(arg_string or "").items()}
        return cls(**arguments, **{key: value for key, value in (additional_config or {}).items() if value is not None})

    # --- properties that lm-eval reads ---

    @property
    def eot_token_id(self) -> int:
        decoding_config = self.model.language_model.decoding_config
        return decoding_config.eos_ids[0] if decoding_config.eos_ids else decoding_config.pad_id

    @property
    def prefix_token_id(self) -> int:
        """The token before an empty context."""
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
        """Formats messages with the tokenizer's chat template."""
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
        """Token ids; None means `add_bos_token`, or False for a text that begins with the prefix token."""
        if add_special_tokens is None:
            return self._encode(string, self.tokenizer.decode([self.prefix_token_id]), **kwargs)
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens, **kwargs)["input_ids"])

    def _encode(self, string: str, start: str | None, **options: Any) -> list[int]:
        """Token ids, with a BOS token according to `add_bos_token`, unless the text begins with `start`."""
        add_special = False if start and string.startswith(start) else self.add_bos_token
        if add_special is not None:
            options["add_special_tokens"] = add_special
        return list(self.tokenizer(string, **options)["input_ids"])

    def get_model_info(self) -> dict[str, Any]:
        """The entry in lm-eval's results: arguments, resolved samplers, versions."""
        masked = self.model.language_model.decoding_config.masked
        scoring = {"likelihood": self.likelihood.kind, "mc_num": self.likelihood.mc_num} if masked else {}
        info = {"model": self.model.name, **self.defaults, "specs": sorted(self.specs), "seed": self.seed}
        return {"pardec": {**info, **scoring, **self.model.environment()}}

    # --- the three kinds of request ---

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One text per request, cut before the first of its `until` strings."""
        generations = [generation(request.args[1], self.defaults) for request in requests]
        prompts = [self._prompt(request.args[0], each) for request, each in zip(requests, generations, strict=True)]
        settings = [each.after(len(prompt)) for each, prompt in zip(generations, prompts, strict=True)]
        repeats: Counter[tuple[int, ...]] = Counter()
        seeds = []
        for prompt, arguments in zip(prompts, settings, strict=True):
            seeds.append(key_of(arguments.get("seed", self.seed), prompt, repeats[tuple(prompt)]))
            repeats[tuple(prompt)] += 1
        groups: dict[str, list[int]] = {}
        for i, arguments in enumerate(settings):
            key = json.dumps([arguments, generations[i].no_repeat_ngram_size], sort_keys=True)
            groups.setdefault(key, []).append(i)
        texts: dict[int, str] = {}
        with tqdm(total=len(requests), desc="Running generate_until requests", disable=disable_tqdm) as bar:
            for group in groups.values():
                arguments = self._with_processors(settings[group[0]], generations[group[0]].no_repeat_ngram_size)
                group.sort(key=lambda i: -len(prompts[i]))

                def decode(rows: Sequence[int], arguments: dict[str, Any] = arguments) -> dict[int, str]:
                    batch = [prompts[i] for i in rows]
                    return dict(zip(rows, self._generate(batch, arguments, [seeds[i] for i in rows]), strict=True))

                for count, batch_texts in self.batches.run(group, decode):
                    for i, text in batch_texts.items():
                        self.cache_hook.add_partial("generate_until", requests[i].args, text)
                    texts |= batch_texts
                    bar.update(count)
        return [texts[i] for i in range(len(requests))]

    def _with_processors(self, arguments: dict[str, Any], ngram: int) -> dict[str, Any]:
        """Adds a processor that prevents repeated n-grams of `ngram` tokens; 0 is off."""
        if not ngram:
            return arguments
        if self.model.language_model.decoding_config.masked:
            raise SpecError(
                f"no_repeat_ngram_size={ngram} needs left-to-right decoding, unlike {self.model.name}",
                hint="leave it out; repetition_penalty works there",
            )
        if ngram < 0:
            raise SpecError(f"no_repeat_ngram_size must be at least 1, got {ngram}", hint="0 is off")
        from transformers import NoRepeatNGramLogitsProcessor

        return {**arguments, "logits_processor": [NoRepeatNGramLogitsProcessor(ngram)]}

    def _prompt(self, context: str, settings: Generation) -> list[int]:
        """Ids of a context, truncated to leave room for the generated tokens."""
        # As in lm-eval's `hf`, generation checks for the BOS token here, and scoring for the prefix token.
        ids = self._encode(context, self.tokenizer.bos_token) or [self.prefix_token_id]
        if self._limit is None:
            return ids
        new = Settings.of(settings.arguments).max_new_tokens
        if settings.max_length is not None and new >= self._limit:  # lm-eval's `hf` raises here
            return self._truncate(ids, self._limit - 1)
        if new >= self._limit:
            raise SpecError(
                f"{new} new tokens leave no room for a prompt in the {self._limit} of {self.model.name}",
                hint="generate fewer: --gen_kwargs max_gen_toks=128",
            )
        return self._truncate(ids, self._limit - new)

    def _generate(self, prompts: list[list[int]], arguments: dict[str, Any], seeds: list[int]) -> list[str]:
        settings = {**arguments, "seed": seeds, "stop_ids": list(self.model.language_model.decoding_config.eos_ids)}
        result = self.model.generate(input_ids=prompts, **settings)
        self.specs.add(result.spec)
        assert result.text is not None, "there is a tokenizer"
        return result.text

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        values = self._score([(context, answer) for _, context, answer in requests], disable_tqdm)
        for (texts, _, _), value in zip(requests, values, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, value)
        return values

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts in windows of the model's length; each token is predicted once."""
        room = self.max_length - (1 if self.model.language_model.decoding_config.masked else 0)
        windows = [
            [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(self.tok_encode(request.args[0]), self.prefix_token_id, room, 1)
            ]
            for request in requests
        ]
        scores = iter(self._score([pair for pairs in windows for pair in pairs], disable_tqdm))
        values = [sum(next(scores)[0] for _ in pairs) for pairs in windows]
        for request, value in zip(requests, values, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return values

    def _score(self, pairs: list[tuple[list[int], list[int]]], disable_tqdm: bool) -> list[tuple[float, bool]]:
        """Scores pairs of (context ids, answer ids) in batches, longest first."""
        room = self.max_length + (
            0 if self.model.language_model.decoding_config.masked else 1
        )  # the last token is not fed
        fitted = []
        for context, answer in pairs:
            # A context of spaces alone has no token left, since lm-eval moves them to the answer.
            context = context or [self.prefix_token_id]
            if len(answer) >= room:
                raise SpecError(
                    f"an answer of {len(answer)} tokens does not fit the length {self.max_length} of {self.model.name}",
                    hint="leave the task out, or raise max_length if the checkpoint has more positions",
                )
            fitted.append((self._truncate(context, room - len(answer)), answer))
        order = sorted(range(len(pairs)), key=lambda i: -len(fitted[i][0] + fitted[i][1]))
        scores: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(pairs), desc="Running loglikelihood requests", disable=disable_tqdm) as bar:
            size = self.batches.size  # may shrink when memory runs out
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                scores.update(zip(rows, self.likelihood.score([fitted[i] for i in rows], seed=self.seed), strict=True))
                bar.update(len(rows))
        return [scores[i] for i in range(len(pairs))]

    def _truncate(self, ids: list[int], room: int) -> list[int]:
        """The last `room` ids."""
        if len(ids) > room:
            _log.warning("a context of %d tokens is truncated: its first %d are dropped", len(ids), len(ids) - room)
        return ids[-room:]
