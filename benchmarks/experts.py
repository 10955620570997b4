"""Times a step of LLaDA2-mini's layers with random weights on a CPU, by the number of experts that are used.

    python benchmarks/experts.py [--layers 2] [--repeats 9] [--dtype bfloat16] [--out benchmarks/experts]

A forward of the layers alone (a vocabulary of 1,024, no head), for 1 to 64 queries of random tokens, which choose their
experts themselves, and for the same queries with a bias in the router that lets all of them choose the same eight. The
settings take turns; times are medians of process time, which other load on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from pardec.environment import processor
from pardec.models.decoder import Decoder
from pardec.models.families import FAMILIES
from pardec.models.kernels.experts import route
from pardec.models.layers import sparse_layer
from pardec.models.loading import assemble
from pardec.models.plan import Plan, Visible

MINI = {
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 0,
    "rms_norm_eps": 1e-6,
    "rope_theta": 600000.0,
    "partial_rotary_factor": 0.5,
    "vocab_size": 1024,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
QUERIES = (1, 2, 4, 8, 16, 32, 64)
FAVOUR = 100.0  # higher than every score


def random_decoder(layers: int, dtype: torch.dtype) -> Decoder:
    """The layers with random weights; routers in float32."""
    decoder = assemble.empty(FAMILIES["llada2"].decoder({**MINI, "num_hidden_layers": layers}))
    decoder = decoder.to(dtype).to_empty(device="cpu").requires_grad_(False)
    torch.manual_seed(0)
    for name, weight in decoder.named_parameters():
        weight.zero_() if "router_bias" in name else weight.fill_(1) if "norm" in name else weight.normal_(0, 0.02)
        if "router" in name:
            weight.data = weight.data.float()
    return decoder


@contextmanager
def same_experts(decoder: Decoder) -> Iterator[None]:
    """Makes all tokens choose the same eight experts."""
    biases = [layer.router_bias for layer in decoder.layers if isinstance(layer, sparse_layer.SparseLayer)]
    for bias in biases:
        assert bias is not None
        bias.data[: MINI["num_experts_per_tok"]] = FAVOUR  # type: ignore[misc]
    yield
    for bias in biases:
        assert bias is not None
        bias.data.zero_()


def experts_hit(run: Callable[[], Any]) -> float:
    """The mean number of experts per layer that are read in a forward."""
    counts: list[int] = []

    def counting(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, weights = route(*arguments)
        counts.append(len(chosen.unique()))
        return chosen, weights

    with mock.patch.object(sparse_layer, "route", counting):
        run()
    return sum(counts) / len(counts)


def measure(decoder: Decoder, repeats: int) -> list[dict[str, float]]:
    """A row for each number of queries."""
    plans = {}
    for count in QUERIES:
        tokens = torch.randint(0, MINI["vocab_size"], (1, count), generator=torch.Generator().manual_seed(count))  # type: ignore[arg-type]
        plans[count] = Plan.full(tokens, Visible.bidirectional())

    def forward(count: int) -> None:
        decoder(plans[count], None)

    rows: dict[int, dict[str, Any]] = {}
    for count in QUERIES:
        rows[count] = {"queries": count, "experts": experts_hit(lambda count=count: forward(count))}
        with same_experts(decoder):
            rows[count]["same experts"] = experts_hit(lambda count=count: forward(count))
    times: dict[tuple[int, bool], list[float]] = {(count, same): [] for count in QUERIES for same in (False, True)}
    for _ in range(repeats):
        for same in (False, True):
            for count in QUERIES:
                if same:
                    with same_experts(decoder):
                        times[count, same].append(timed(forward, count))
                else:
                    times[count, same].append(timed(forward, count))
    for count in QUERIES:
        rows[count]["ms"] = 1000 * statistics.median(times[count, False])
        rows[count]["ms with the same experts"] = 1000 * statistics.median(times[count, True])
    return list(rows.values())


def timed(forward: Callable[[int], None], count: int) -> float:
    start = time.process_time()
    forward(count)
    return time.process_time() - start


def page(document: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "# Experts on a CPU\n",
        f"`{document['command']}`, {document['processor']}, one thread, torch {document['torch']}\n",
        f"{document['layers']} layers of LLaDA2-mini's shape (256 experts of width 512, eight of them for each token) "
        f"with random weights in {document['dtype']}: milliseconds of a forward without embedding and head. Where the "
        "queries choose for themselves, more of them hit more experts, whose weights have to be read; where all choose "
        "the same eight, the time grows with the queries alone.\n",
        "| queries | experts hit in a layer | ms | the same eight: experts hit | ms |",
        "|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        lines.append(
            f"| {row['queries']} | {row['experts']:.1f} | {row['ms']:.1f} | {row['same experts']:.1f} | "
            f"{row['ms with the same experts']:.1f} |"
        )
    first, last = document["rows"][0], document["rows"][-1]
    slope = (last["ms"] - first["ms"]) / (last["experts"] - first["experts"])
    lines.append(
        f"\nFrom {first['queries']} to {last['queries']} queries that is {slope:.2f} ms for each further expert hit.\n"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--out", type=Path, help="FILE for FILE.json and FILE.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        decoder = random_decoder(options.layers, getattr(torch, options.dtype))
        rows = measure(decoder, options.repeats)
    document = {"command": "python " + shlex.join(sys.argv), "torch": torch.__version__, "processor": processor()}
    document |= {"layers": options.layers, "dtype": options.dtype, "rows": rows}
    text = page(document)
    print(text)
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
