"""Any other causal language model of transformers, with the native decoder's interface.

The library's own layers run; only their attention is replaced, through its `AttentionInterface`, by pardec's `attend`
over a position-addressed cache. Loading checks that this gives the library's own logits.
"""

from __future__ import annotations

import inspect as introspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from ..caches.kv_cache import KVCache
from ..errors import ModelError, one_line
from ..finite import damaged
from ..parallel.placement import out_of_memory
from ..plan import Hidden, Plan, Visible
from .attention import ATTENTION, Running, running_forward

_SCALES = ("logit_scale", "logits_scaling", "final_logit_softcapping")


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The modules of a transformers model that tokens of one vocabulary run through."""

    body: Any  # a library model: layers and final norm
    embed: nn.Module  # ids [B, Q] to input states [B, Q, E]; its `weight` is [V, E]
    head: nn.Module | None  # states [M, E] to logits [M, V]
    vocab: int
    own: Callable[[Tensor], Tensor]  # ids [B, Q] to logits [B, Q, V], as the library computes them
    refresh: Callable[[], object] = lambda: None  # updates what `embed` derived from weights that were replaced
    # the same ids at positions from `count` on, after tokens that nothing attends to: None, where that is not known
    later: Callable[[Tensor, int], Tensor] | None = None

    @staticmethod
    def causal(model: Any) -> Parts:
        """The modules of a causal LM."""
        head = model.get_output_embeddings()
        vocab = 0 if head is None else int(head.weight.shape[0])
        # For some models, such as Llama 4's text, the library's own prefix is wrong, and `base_model` is the whole.
        body = model.base_model if model.base_model is not model else getattr(model, "model", model)

        def later(ids: Tensor, count: int) -> Tensor:
            positions = torch.arange(count, count + ids.shape[1], device=ids.device)[None]
            past = Past(model.config.get_text_config(decoder=True), count)
            out = model(input_ids=ids, position_ids=positions, past_key_values=past, use_cache=True)
            return cast(Tensor, out.logits)

        return Parts(
            body,
            model.get_input_embeddings(),
            head,
            vocab,
            lambda ids: cast(Tensor, model(input_ids=ids, use_cache=False).logits),
            later=later,
        )


class HFAdapter:
    """A transformers causal LM with the interface `forward(plan, cache) -> Hidden`.

    `Plan.soft` is added to the library's input embeddings; `Plan.layers`, `Plan.skip` and `Plan.parallel` are refused.
    """

    def __init__(self, model: Any, name: str, parts: Parts | None = None) -> None:
        """Runs `parts` of the model, by default those for text.

        Raises ModelError, naming the model, if pardec's attention does not give the model's own logits.
        """
        self.model = model
        self.name = name
        self.kv_heads = self.head_dim = 0
        self.limit: int | None = None
        self.weights_version = 0  # rises when the weights are replaced in place
        self._parts = parts = Parts.causal(model) if parts is None else parts
        self._body, self._embed, self._head = parts.body, parts.embed, parts.head
        self._text = model.config.get_text_config(decoder=True)
        self.layers = int(self._text.num_hidden_layers)
        self.vocab = parts.vocab
        self._require()
        expected = self._own_logits()
        self._scales = self._used_scales(expected)
        later = self._own_later_logits()
        (model if self._head is model.get_output_embeddings() else parts.body).set_attn_implementation(ATTENTION)
        with self._named():
            self._probe(expected)
            self._probe_later(later)

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        if plan.layers is not None or plan.skip or plan.parallel > 1:
            raise ModelError(
                f"{self.name} runs through transformers, which cannot run a part of its layers",
                "use a model of a native family",
            )
        if plan.attention:
            raise ModelError(
                f"{self.name} runs through transformers, which does not return attention weights",
                "use a model of a native family, or a method that reads no attention",
            )
        if self.layers - 1 in plan.hidden:
            raise ModelError(
                f"{self.name} runs through transformers, which does not return the states of its last layer"
            )
        hidden, running = self._run(plan, cache)
        if len(running.heads) < self.layers:  # a layer was replaced after loading, and has another config
            self._require_all(running)
        return hidden

    @property
    def embedding(self) -> Tensor:
        """The input embeddings [V, E]."""
        return cast(Tensor, self._embed.weight)

    @property
    def head(self) -> nn.Module | None:
        """The module that computes logits from states."""
        return self._head

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` rows of `capacity` slots, each layer's part where the layer runs."""
        return KVCache(
            layers=self.layers,
            batch=batch,
            capacity=capacity,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.model.dtype,
            device=[self._layer_devices[layer] for layer in range(self.layers)],
        )

    def parameters(self) -> Iterator[Tensor]:
        """Every weight once."""
        parameters: Iterator[Tensor] = self.model.parameters()
        return parameters

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight once, under the library's name."""
        named: Iterator[tuple[str, Tensor]] = self.model.named_parameters()
        return named

    def refresh(self) -> None:
        """Updates everything that was derived from weights that have been replaced."""
        self._parts.refresh()

    @property
    def device(self) -> torch.device:
        """The device of the embedding."""
        hook = getattr(self._embed, "_hf_hook", None)
        device = getattr(hook, "execution_device", None)
        return torch.device(device) if device is not None else next(self._embed.parameters()).device

    def _run(self, plan: Plan, cache: KVCache | None) -> tuple[Hidden, Running]:
        running = Running(plan, cache)
        token = running_forward.set(running)
        try:
            out = self._body(
                **self._entering(plan),
                position_ids=plan.positions.clamp(min=0),
                use_cache=False,
                output_hidden_states=bool(plan.hidden),
                return_dict=True,
            )
        finally:
            running_forward.reset(token)
        taps = {layer: out.hidden_states[layer + 1] for layer in plan.hidden}
        return Hidden(plan, out.last_hidden_state, self._project, taps), running

    def _entering(self, plan: Plan) -> dict[str, Tensor]:
        """The input: ids where the library knows them, else states; `Plan.soft` alone where the token is -1."""
        if plan.soft is None:
            own = self._embed is self._body.get_input_embeddings()
            return {"input_ids": plan.tokens} if own else {"inputs_embeds": self._embed(plan.tokens)}
        h = self._embed(plan.tokens.clamp(min=0)).masked_fill((plan.tokens < 0)[..., None], 0)
        return {"inputs_embeds": h + plan.soft.to(h.dtype)}

    def _project(self, states: Tensor) -> Tensor:
        assert self._head is not None, "a model without one is refused"
        return self._scaled(self._head(states), self._scales).to(self.device)

    def _scaled(self, logits: Tensor, keys: tuple[str, ...]) -> Tensor:
        """The head's logits, scaled as the model's class scales them by these keys of its config."""
        values = {key: getattr(self._text, key) for key in keys}
        if "logit_scale" in values:
            logits = logits * values["logit_scale"]
        if "logits_scaling" in values:
            logits = logits / values["logits_scaling"]
        if "final_logit_softcapping" in values:
            cap = values["final_logit_softcapping"]
            logits = cap * torch.tanh(logits / cap)
        return logits

    @torch.inference_mode()
    def _used_scales(self, expected: Tensor) -> tuple[str, ...]:
        """The keys of the config by which its class scales logits: it may ignore keys that are there."""
        present = tuple(key for key in _SCALES if getattr(self._text, key, None))
        if not present or self._head is None:
            return ()
        ids = self._probe_ids()
        with self._named():
            plain = self._head(self._body(input_ids=ids, use_cache=False).last_hidden_state)
        subsets = [some for count in range(len(present), -1, -1) for some in combinations(present, count)]
        gaps = [float((self._scaled(plain, some).float() - expected).abs().max()) for some in subsets]
        return subsets[gaps.index(min(gaps))]

    def _require(self) -> None:
        """Refuses models that are known not to use the attention interface."""
        if self._body is self.model:
            raise self._refusal("its layers and its head cannot be separated")
        for key, value in (("is_causal", False), ("use_bidirectional_attention", True)):
            if getattr(self._text, key, None) is value:
                raise self._refusal(
                    f"{key} is {str(value).lower()} in its config.json: tokens attend to later ones",
                    'load a masked model of a native family with attention="bidirectional" (--attention)',
                )
        kinds = set(getattr(self._text, "layer_types", None) or ())
        foreign = kinds - {"full_attention", "sliding_attention", "chunked_attention", "attention"}
        if foreign:
            raise self._refusal(f"it has layers of kind {', '.join(sorted(map(str, foreign)))}")
        if not getattr(self._body, "_supports_attention_backend", False):
            raise self._refusal("its attention does not go through transformers' AttentionInterface")
        if self._head is None or "position_ids" not in introspect.signature(self._body.forward).parameters:
            raise self._refusal("it takes no position_ids, or has no language-model head")
        try:
            cache = DynamicCache(config=self._text)
        except (TypeError, ValueError, AttributeError) as error:
            raise self._refusal(f"transformers makes no KV cache for its config.json: {one_line(error)}") from error
        for layer in cache.layers:  # the cache may drop slots that the layers would see
            if layer.is_sliding:
                if layer.sliding_window < 2:
                    raise self._refusal(f"sliding_window is {layer.sliding_window} in its config.json")
                self._lower_limit(layer.sliding_window)
        scaling = getattr(self._text, "rope_parameters", None) or {}
        for entry in (scaling, *(value for value in scaling.values() if isinstance(value, dict))):
            if entry.get("rope_type") in ("dynamic", "longrope"):  # frequencies change past this length, for all rows
                self._lower_limit(entry.get("original_max_position_embeddings") or self._text.max_position_embeddings)
        tables = (self._embed, self._body.get_input_embeddings())
        for module in self._body.modules():
            if isinstance(module, nn.Embedding) and module not in tables:  # learned positions end here
                self._lower_limit(getattr(self._text, "max_position_embeddings", None))

    def _lower_limit(self, bound: int | None) -> None:
        if bound:
            self.limit = bound if self.limit is None else min(self.limit, bound)

    @torch.inference_mode()
    def _own_logits(self) -> Tensor:
        try:
            return self._parts.own(self._probe_ids()).float()
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise self._refusal(f"its own forward fails: {one_line(error)}") from error

    def _later_counts(self, width: int) -> list[int]:
        """The numbers of earlier tokens that are probed: a few, half of the model's length, and the maximum."""
        most = self.limit or getattr(self._text, "max_position_embeddings", None) or 0
        return sorted({count for count in (3, most // 2, most - width) if 0 < count <= most - width})

    @torch.inference_mode()
    def _own_later_logits(self) -> dict[int, Tensor]:
        """The library's own logits at later positions; none if the model cannot compute them this way."""
        if self._parts.later is None:
            return {}
        ids = self._probe_ids()
        try:
            return {count: self._parts.later(ids, count).float() for count in self._later_counts(ids.shape[1])}
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            if out_of_memory(error):
                raise
            return {}

    @torch.inference_mode()
    def _probe_later(self, expected: dict[int, Tensor]) -> None:
        """Compares logits at later positions; fails for a model that counts positions by its own cache."""
        ids = self._probe_ids()
        for count, logits in expected.items():
            if count + ids.shape[1] > (self.limit or count + ids.shape[1]):
                continue
            causal = torch.ones(1, ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
            plan = Plan.full(ids, Visible.mask(causal))
            plan = replace(plan, positions=plan.positions + count, span=None)
            try:
                self._compare(self._run(plan, None)[0].logits(), logits, ids.shape[1])
            except ModelError as error:
                raise ModelError(f"from position {count} on, {error}") from error

    def _probe_ids(self) -> Tensor:
        count = min(12, self.limit or 12)
        return ((torch.arange(count, device=self.device) * 7919 + 13) % self.vocab)[None]

    @torch.inference_mode()
    def _probe(self, expected: Tensor) -> None:
        """Compares with the model's own logits, in one forward and in two through the cache."""
        ids = self._probe_ids()
        width = ids.shape[1]
        hidden, running = self._run(Plan.full(ids, Visible.causal()), None)
        self._require_all(running)
        if len(set(running.heads.values())) > 1:
            raise ModelError(f"its layers differ in their key/value heads: {sorted(set(running.heads.values()))}")
        self.kv_heads, self.head_dim = next(iter(running.heads.values()))
        for window in running.windows:
            self._lower_limit(window)
        self._layer_devices = self._find_devices(running)
        compared = min(width, self.limit or width)
        self._compare(hidden.logits(), expected, compared)
        cache, half = self.new_cache(1, width), width // 2
        order = torch.arange(width, device=ids.device)[None]
        parts = []
        for part in (slice(0, half), slice(half, width)):
            lengths = torch.tensor([part.stop], device=ids.device)
            want = torch.arange(part.stop - part.start, device=ids.device)[None]
            plan = Plan(ids[:, part], order[:, part], order[:, part], Visible.causal(), lengths, want)
            parts.append(self._run(plan, cache)[0].logits())
        self._compare(torch.cat(parts, 1), expected, compared)

    def _require_all(self, running: Running) -> None:
        missing = sorted(set(range(self.layers)) - set(running.heads))
        if missing:
            raise ModelError(
                f"layers {missing} do not attend through transformers' AttentionInterface",
                "load the model again if its layers were replaced",
            )

    def _find_devices(self, running: Running) -> dict[int, torch.device]:
        devices = dict.fromkeys(range(self.layers), self.device)
        for module in self._body.modules():
            layer = getattr(module, "layer_idx", None)
            if layer in running.heads and hasattr(module, "_hf_hook"):
                device = getattr(module._hf_hook, "execution_device", None)
                devices[layer] = torch.device(device) if device is not None else devices[layer]
        return devices

    def _compare(self, logits: Tensor, expected: Tensor, count: int) -> None:
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 6e-2
        if not bool(expected.isfinite().all()) and (wrong := damaged(self.named_parameters())):
            raise ModelError(f"its logits are not finite: {wrong}")
        gap = (logits - expected)[:, :count].abs().max() / expected[:, :count].abs().max().clamp(min=1e-6)
        if not gap < tolerance:  # NaN too
            raise ModelError(f"its logits with pardec's attention and with its own differ by {gap:.1g} (relative)")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except ModelError as error:
            raise self._refusal(str(error)) from error
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            if out_of_memory(error):
                raise
            raise self._refusal(f"run with pardec's attention, it fails: {one_line(error)}") from error

    def _refusal(self, reason: str, hint: str = "use a causal LM with plain attention in every layer") -> ModelError:
        return ModelError(f"{self.name} ({type(self.model).__name__}) cannot be run: {reason}", hint)


class Past(DynamicCache):  # type: ignore[misc]
    """A cache for probing later positions: queries come after `count` tokens, which nothing attends to.

    So a model that counts positions from its cache, and not from its `position_ids`, shows itself in one short forward.
    """

    def __init__(self, config: Any, count: int) -> None:
        super().__init__(config=config)
        self.count = count

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Returns the keys and values unchanged."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of earlier tokens."""
        return self.count

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The position of the first query."""
        return self.count

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The number of keys in a forward, and the position of the first."""
        return query_length, self.count
