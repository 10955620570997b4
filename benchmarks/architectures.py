"""Checks which causal architectures of transformers pardec runs, by decoding a tiny random model of each with both.

    python benchmarks/architectures.py [NAME ...] [--markdown]

Each model is built from its config class with random weights, saved, and decoded greedily by transformers' `generate`
and by pardec: one token per forward (`sequential`), and with drafts (`lookup`). "equal": all tokens are the same.
"refused": while loading, pardec says why it cannot run the model faithfully. Families that pardec implements itself are
left out. Exits with 1 if a model gives other tokens, or fails with an error that is not a refusal.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

PROMPTS = ([3, 14, 15, 9, 26, 5, 3, 14, 15, 9], [2, 7, 18, 28, 18])
NEW = 16
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 95,
    "pad_token_id": 0,
}
# Settings of a config class besides the shared sizes, or under other names.
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "arcee": {},
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 128, "rotary_dim": 4},
    "cohere": {},
    "cohere2": {"sliding_window": 64},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "exaone4": {"sliding_window": 64},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 128},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 128},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 64},
    "gpt_neox": {},
    "gpt_oss": {"head_dim": 8, "sliding_window": 64, **_EXPERTS},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 128, "rotary_dim": 4},
    "granite": {},
    "granitemoe": _EXPERTS,
    "llama4_text": {
        "head_dim": 8,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 64,
        "num_hidden_layers": 4,
    },
    "mamba": {"state_size": 4},
    "mixtral": {"sliding_window": None, **_EXPERTS},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmoe": _EXPERTS,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "qwen2_moe": {"shared_expert_intermediate_size": 32, **_EXPERTS},
    "qwen3_next": {
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "shared_expert_intermediate_size": 32,
        "num_hidden_layers": 4,
        **_EXPERTS,
    },
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {"sliding_window": None},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one architecture."""

    name: str
    model: str  # transformers' class
    result: str  # "equal", "refused", "differs" or "crashed"
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name:14} {self.model:28} {self.result:9} {self.why}".rstrip()


def check(name: str) -> Outcome:
    """Decodes one architecture, named by its model_type, with both libraries."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    import pardec

    config = CONFIG_MAPPING[name](**{**SMALL, **ARCHITECTURES[name]})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(
                    weight, std=0.2
                )  # with the default weights, most repeat one token whatever the prompt
    kind = type(model).__name__
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        expected = [_greedy(model, prompt) for prompt in PROMPTS]
        try:
            loaded = pardec.load(folder, device="cpu", dtype="float32")
            for sampler in ("sequential", "lookup:k=4"):
                result = loaded.generate(input_ids=list(PROMPTS), sampler=sampler, max_new_tokens=NEW, stop_ids=[])
                if result.tokens != expected:
                    return Outcome(name, kind, "differs", f"{sampler}: {result.tokens} in place of {expected}")
        except pardec.ModelError as error:
            return Outcome(name, kind, "refused", _reason(str(error)))
        except Exception as error:  # any other error is a bug
            return Outcome(name, kind, "crashed", f"{type(error).__name__}: {error}")
    return Outcome(name, kind, "equal")


@torch.inference_mode()
def _greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None  # rows of full length
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokens = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0
        )
    return [int(token) for token in tokens[0, len(prompt) :]]


def _reason(message: str) -> str:
    """The reason in a refusal's message."""
    return message.partition("cannot be run: ")[2] or message


def markdown(rows: list[Outcome]) -> str:
    """The outcomes as a table."""
    lines = ["| model_type | class of transformers | greedy tokens | why |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| `{row.name}` | `{row.model}` | {row.result} | {row.why} |" for row in rows)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="model_type; all if none is given")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = []
    for name in options.names or ARCHITECTURES:
        row = check(name)
        rows.append(row)
        print(row, file=sys.stderr if options.markdown else sys.stdout, flush=True)
    if options.markdown:
        print(markdown(rows))
    counts = {result: sum(row.result == result for row in rows) for result in dict.fromkeys(row.result for row in rows)}
    print(f"{len(rows)} architectures: {', '.join(f'{n} {result}' for result, n in counts.items())}", file=sys.stderr)
    return 1 if {"differs", "crashed"} & set(counts) else 0


if __name__ == "__main__":
    sys.exit(main())
