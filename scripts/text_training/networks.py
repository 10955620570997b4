"""The networks, built from transformers' own classes, and how one starts from another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from einops import repeat
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pardec.models.errors import SpecError, did_you_mean

SHAPE: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
ROPE_THETA = 10000.0
OWN: dict[str, dict[str, Any]] = {  # where a network differs from SHAPE
    "tiny-llama": {"num_key_value_heads": 2},
    "tiny-llama-draft": {
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "tiny-dream": {"num_key_value_heads": 2},
    "tiny-llada": {"num_key_value_heads": 6},
}
OWN["tiny-llama-bytes"] = OWN["tiny-nemotron"] = OWN["tiny-llama-draft"]
SHIFT = {"tiny-llada": 0} | dict.fromkeys((name for name in OWN if name != "tiny-llada"), 1)
# logits at position p - SHIFT predict the token at p


def is_masked(name: str) -> bool:
    """Whether the model only learns to fill masks; tiny-nemotron also writes token by token."""
    return name in ("tiny-dream", "tiny-llada")


def build(name: str, vocab_size: int, **changes: Any) -> nn.Module:
    """A freshly initialised network in float32; `changes` override SHAPE (tests use less).

    Raises SpecError for a change that is not a size of the network.
    """
    sizes = (*SHAPE, "num_key_value_heads", "head_dim")
    if unknown := [size for size in changes if size not in sizes]:
        raise SpecError(f"the network has no size {unknown[0]!r}{did_you_mean(unknown[0], sizes)}")
    shape = {**SHAPE, **OWN[name], "vocab_size": vocab_size, **changes}
    if name == "tiny-llada" and "num_attention_heads" in changes:
        shape["num_key_value_heads"] = changes["num_attention_heads"]
    rope = {"rope_type": "default", "rope_theta": ROPE_THETA}
    if name == "tiny-dream":
        model: nn.Module = Qwen2ForCausalLM(Qwen2Config(**shape, rope_parameters=rope))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape, rope_parameters=rope))
    depth = shape["num_hidden_layers"]
    for key, value in model.named_parameters():
        if value.ndim == 2 and "embed" not in key:
            out = key.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(value, std=value.shape[1] ** -0.5 * ((2 * depth) ** -0.5 if out else 1.0))
    return model


def adopt(model: nn.Module, source: dict[str, Tensor]) -> None:
    """Starts from another network's weights: missing biases are zero, k/v heads repeat for grouped queries.

    Raises ValueError naming the tensors that do not fit.
    """
    wanted = model.state_dict()
    head = wanted["model.layers.0.self_attn.q_proj.weight"].shape[0] // model.config.num_attention_heads
    found: dict[str, Tensor] = {}
    for key, value in wanted.items():
        given = source.get(key)
        if given is None and key.endswith(".bias"):
            given = torch.zeros_like(value)
        elif given is not None and given.shape != value.shape and key.endswith(("k_proj.weight", "v_proj.weight")):
            times = value.shape[0] // given.shape[0]
            given = repeat(given, "(k d) h -> (k times d) h", d=head, times=times)
        if given is None or given.shape != value.shape:
            raise ValueError(f"cannot start from these weights: {key} is missing or has another shape")
        found[key] = given.float()
    model.load_state_dict(found)


def compile_layers(model: nn.Module) -> None:
    """Compiles each layer once per canvas length (there are few)."""
    torch._dynamo.config.recompile_limit = 64
    for layer in model.model.layers:
        layer.compile(dynamic=False)


def logits_of(model: nn.Module, ids: Tensor, masked: bool) -> Tensor:
    """Logits [B, L, V] of full rows (there is no padding to hide); masked models see both ways."""
    if not masked:
        return model(input_ids=ids, use_cache=False).logits
    hidden = model.model(input_ids=ids, attention_mask=_everything(ids), use_cache=False).last_hidden_state
    return model.lm_head(hidden)


def logits_at(model: nn.Module, ids: Tensor, exits: Iterable[int]) -> list[Tensor]:
    """Logits [B, L, V] of full rows of a causal model after its first layers, as many as each of `exits` says.

    Sorted fine-tuning, https://arxiv.org/abs/2309.08968: all exits share the norm and the head.
    """
    states = model.model(input_ids=ids, output_hidden_states=True, use_cache=False)
    inner = states.hidden_states[:-1]  # the last ones are after the norm already
    each = [states.last_hidden_state if exit_ == len(inner) else model.model.norm(inner[exit_]) for exit_ in exits]
    return [model.lm_head(normed) for normed in each]


def logits_from_cache(model: nn.Module, ids: Tensor, prompt: Tensor, mask_id: int, shift: int) -> Tensor:
    """Logits [B, L, V] of `ids` as in a cached decode; meaningless before the row that predicts the first new token.

    The prompt's keys and values come from a pass over the row with everything generated still masked, and do not know
    what was committed since. Both passes are one: each row is laid twice side by side, positions and all.
    """
    rows, length = ids.shape
    at = torch.arange(length, device=ids.device)
    generated = at >= prompt[:, None]  # [B, L]
    again = at >= (prompt - shift)[:, None]  # the positions that a cached forward computes
    old, new = torch.ones_like(generated), torch.zeros_like(generated)
    # The first copy attends to all of itself; the second to the prompt of the first, and to its own computed positions.
    first = torch.cat([old, new], 1)[:, None].expand(-1, length, -1)
    second = torch.cat([~again, again], 1)[:, None].expand(-1, length, -1)
    both = torch.cat([ids.masked_fill(generated, mask_id), ids], 1)
    hidden = model.model(
        input_ids=both,
        attention_mask=torch.cat([first, second], 1)[:, None],
        position_ids=torch.cat([at, at])[None].expand(rows, -1),
        use_cache=False,
    ).last_hidden_state
    return model.lm_head(hidden[:, length:])


def _everything(ids: Tensor) -> Tensor:
    """An attention mask [1, 1, L, L] that hides nothing, added or boolean; transformers takes 4-D masks unchanged."""
    return torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)


def optimizers(model: nn.Module, kind: str, lr: float) -> list[torch.optim.Optimizer]:
    """AdamW for all, or Muon for the matrices of the layers and AdamW for the rest."""
    matrices, rest, vectors = [], [], []
    for key, value in model.named_parameters():
        hidden = value.ndim == 2 and ".layers." in key
        (matrices if hidden else rest if value.ndim == 2 else vectors).append(value)
    adam: Iterable[dict[str, Any]]
    adam = [{"params": rest, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    if kind == "adamw":
        adam = [{"params": matrices + rest, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        return [torch.optim.AdamW(adam, lr=lr, betas=(0.9, 0.98))]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(adam, lr=lr, betas=(0.9, 0.98))]
