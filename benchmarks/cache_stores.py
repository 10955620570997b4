"""Measures caches that compress older K/V: bytes per token, and how much predictions change.

    python benchmarks/cache_stores.py [--model tiny-llama ...] [--prompt 352] [--steps 64] [--rows 2] [--out NAME]

Rows of text are read once with the plain cache and once with each store: the prompt in one forward, then token by token
as they stand in the text. Compared are the next-token distributions at every step after the prompt.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

import pardec
from pardec.environment import processor
from pardec.models.caches.kv_cache import KVCache
from pardec.models.kv_stores.cache import StoredCache
from pardec.models.kv_stores.contracts import ChunkShape, Store, layout_bytes
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.speculative.cache.stored_cache import StoredKV

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from prefix_reuse import examples  # noqa: E402

SPECS = (
    "int8",
    "kivi:bits=4",
    "kivi:bits=4,residual=32",
    "rotatekv:bits=4",
    "gear:bits=4",
    "mustafar:sparsity=0.5",
    "mustafar:sparsity=0.7",
    "kivi:bits=2,residual=32",
    "rotatekv:bits=2",
    "gear:bits=2",
)

PAGE = """# Caches that keep older K/V in fewer bytes

`{command}`

One thread of {processor}, torch {torch}; K/V in float32. {rows} rows of text are read: a prompt in one forward, then
{steps} tokens one by one. `bytes` are those of a token that has left the residual, in all layers, keys and values with
scales and minima, and `of float32` their share of the plain cache's. `cache` is the size of the whole cache at the end,
exact slots and the dense memory of one layer included, as a share of the plain one's. `KL` is the mean divergence of
the next token's distribution from that with the plain cache, in nats, and `agree` the share of steps at which both have
the same likeliest token. `step` is the median time of one, next to that of the plain cache.

A store saves memory, not time: each forward decodes what it reads. Distributions are those of the text as it stands, so
errors do not add up as they may in an answer that goes its own way.

| model | prompt | cache | bytes | of float32 | cache | KL | agree | step, ms |
|---|---|---|---|---|---|---|---|---|
"""


def texts(model: pardec.Model, rows: int, length: int) -> Tensor:
    """[rows, length] ids: the documentation for a model of English, problems for an embedded model."""
    if model.name.startswith("tiny"):
        ids = torch.tensor(examples(model, rows * length))
    else:
        prose = "\n".join(file.read_text() for file in sorted((HERE.parent / "docs/concepts").glob("*.md")))
        ids = torch.tensor(model.tokenizer(prose)["input_ids"])
    return ids[: rows * length].view(rows, length)


def read(model: LanguageModel, cache: KVCache, tokens: Tensor, prompt: int) -> tuple[Tensor, float]:
    """Log-probabilities [B, steps, V] after the prompt and each later token but the last; seconds of a median step."""
    batch, width = tokens.shape
    out, seconds = [], []
    for start, stop in ((0, prompt), *((at, at + 1) for at in range(prompt, width - 1))):
        begin = time.process_time()
        order = torch.arange(start, stop).expand(batch, -1)
        lengths, want = torch.full((batch,), stop), torch.full((batch, 1), stop - start - 1)
        plan = Plan(
            tokens[:, start:stop], order, order, model.visible(), lengths, want,
            uniform=stop, span=(start, stop), narrow=True,
        )  # fmt: skip
        out.append(model.forward(plan, cache).logits().log_softmax(-1))
        if isinstance(cache, StoredCache):
            cache.settle((lengths + 1).numpy())  # the token that follows is committed
        seconds.append(time.process_time() - begin)
    return torch.cat(out[1:], 1), float(torch.tensor(seconds[1:]).median())


def token_bytes(store: Store, cache: StoredCache) -> float:
    """Bytes per token after encoding."""
    shapes = [ChunkShape(store.chunk, *part.shape[2:], part.dtype) for part in (*cache.k, *cache.v)]
    codecs = [store.keys] * len(cache.k) + [store.values] * len(cache.v)
    return sum(layout_bytes(codec.layout(shape)) for codec, shape in zip(codecs, shapes, strict=True)) / store.chunk


def lines(name: str, prompt: int, steps: int, rows: int) -> list[str]:
    """The rows of the table for one model."""
    model = pardec.load(name, device="cpu")
    network = model.language_model
    tokens = texts(model, rows, prompt + steps + 1)
    plain = network.new_cache(rows, prompt + steps)
    exact, plain_step = read(network, plain, tokens, prompt)
    slot = sum(part[0, 0].nbytes for part in (*plain.k, *plain.v))
    table = [f"| {model.name} | {prompt} | plain | {slot} | 1 | 1 | 0 | 100% | {1000 * plain_step:.1f} |\n"]
    print(table[-1], end="", flush=True)
    for spec in SPECS:
        stage = registry.resolve(f"sequential@{spec}", "ar").cache
        assert isinstance(stage, StoredKV)
        cache = stage.new_cache(network, rows, prompt + steps)
        assert isinstance(cache, StoredCache)
        stored, step = read(network, cache, tokens, prompt)
        divergence = float((exact.exp() * (exact - stored)).sum(-1).mean())
        agree = float((exact.argmax(-1) == stored.argmax(-1)).float().mean())
        each = token_bytes(stage.store, cache)
        columns = [
            model.name, str(prompt), f"`{spec}`", f"{each:.0f}", f"{each / slot:.2f}",
            f"{cache.nbytes / plain.nbytes:.2f}", f"{divergence:.2g}", f"{agree:.0%}", f"{1000 * step:.1f}",
        ]  # fmt: skip
        table.append(f"| {' | '.join(columns)} |\n")
        print(table[-1], end="", flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", nargs="*", default=["tiny-llama"])
    parser.add_argument("--prompt", type=int, default=352, help="tokens read in one forward")
    parser.add_argument("--steps", type=int, default=64, help="tokens read one by one")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "cache_stores", help="path without suffix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = ["python", "benchmarks/cache_stores.py", *(Path(each).name for each in sys.argv[1:])]
    page = PAGE.format(
        command=" ".join(command),
        processor=processor(),
        torch=torch.__version__,
        rows=options.rows,
        steps=options.steps,
    )
    with torch.inference_mode():
        for name in options.model:
            page += "".join(lines(name, options.prompt, options.steps, options.rows))
    options.out.with_suffix(".md").write_text(page)


if __name__ == "__main__":
    main()
