"""Times specs on long prompts, each run paired with `sequential`; runs that can share the prompt's forward do.

    python benchmarks/long_context.py SmolLM2-135M-Instruct.Q4_1.gguf -s 'sparsekv:read="retrieval:budget=512",k=4' \\
        -s sequential@streaming:sink=16,window=1008 [--tokens 4000,8000] [--kinds fact,code] [--new 64]

The texts are files that come with Python: the language reference in `pydoc_data`, and the standard library's sources.

    fact       one sentence with a number, a fifth of the way into the reference, and a question about it at the end
    document   the reference, to be summarised
    code       a module of the library, to be continued

Each prompt is decoded by every spec, right after `sequential`. Seconds are process time of one thread from the first
token on, so that reading the prompt is left out; what the model's prefix cache has need not be read again. Specs after
`@` read their prompts themselves. For each prompt and spec a line has

    tokens per forward, seconds, the pair's ratio (above 1: faster than sequential), the share of tokens equal to those
    of sequential, whether the planted number is in the answer, and the bytes of all K/V that the spec keeps.

An exact spec whose tokens differ is reported, and the command ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.drivers import driver_of
from pardec.environment import processor
from pardec.models.caches.kv_cache import KVCache
from pardec.models.model import LanguageModel
from pardec.samplers.speculative.loop import VerifyLoop

NUMBER = "70413"
FACT = f" Please remember that the number of the green door in the harbour is {NUMBER}. "
QUESTION = "\n\nWhat is the number of the green door in the harbour? Answer with the number alone."
KINDS = ("fact", "document", "code")


def reference() -> str:
    """The language reference as text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def library() -> str:
    """Sources of the standard library."""
    import argparse as one
    import inspect as two
    import typing as three

    return "\n\n".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (two, one, three))


def content(tokenizer: Any, kind: str, tokens: int) -> str:
    """A text of the kind with about this many tokens."""
    ids = tokenizer(library() if kind == "code" else reference(), add_special_tokens=False)["input_ids"]
    ids = ids[: tokens - 60]  # the question, and the template around it
    if len(ids) < tokens - 60:
        raise SystemExit(f"there are {len(ids)} tokens of {kind}, and {tokens} were asked for")
    if kind == "fact":
        at = len(ids) // 5
        return str(tokenizer.decode(ids[:at])) + FACT + str(tokenizer.decode(ids[at:])) + QUESTION
    end = "\n\nSummarise the text above." if kind == "document" else "\n\nContinue this module."
    return str(tokenizer.decode(ids)) + end


@dataclass(frozen=True)
class Run:
    """One prompt decoded by one spec."""

    spec: str
    exact: str
    kind: str
    prompt: int  # tokens
    seconds: float  # from the first token on
    per_forward: float  # tokens per forward, the prompt's left out
    kv_bytes: int
    tokens: list[int]
    text: str

    @property
    def answered(self) -> bool | None:
        return NUMBER in self.text if self.kind == "fact" else None


def caches(value: Any, depth: int = 2) -> Iterator[KVCache]:
    """The K/V caches in a stage's state."""
    if isinstance(value, KVCache):
        yield value
    elif depth and hasattr(value, "__dict__"):
        for name, each in vars(value).items():
            if name not in ("context", "model"):
                yield from caches(each, depth - 1)


def run(model: LanguageModel, spec: str, kind: str, text: str, new: int) -> Run:
    """Decodes greedily up to `new` tokens, even after an end token."""
    settings = {"sampler": spec, "max_new_tokens": new, "temperature": 0.0, "stop_ids": []}
    call = driver_of(model).prepare([{"role": "user", "content": text}], settings)
    loop = VerifyLoop(model, call.sampler, call.request)
    try:
        loop.round()
        first, start = int(loop.text.length[0]), time.process_time()
        rounds = 0
        while not loop.finished_rows().any():
            loop.round()
            rounds += 1
        seconds = time.process_time() - start
        kept = {id(cache): cache for state in loop.memory.values() for cache in caches(state)}
        kept[id(loop.forward.cache)] = loop.forward.cache
        prompt = int(loop.text.prompt[0])
        tokens = loop.text.row(0)[prompt:].tolist()
        assert model.tokenizer is not None
        return Run(
            spec=spec,
            exact=call.sampler.exact,
            kind=kind,
            prompt=prompt,
            seconds=seconds,
            per_forward=(int(loop.text.length[0]) - first) / rounds,
            kv_bytes=sum(cache.nbytes for cache in kept.values()),
            tokens=tokens,
            text=model.tokenizer.decode(tokens),
        )
    finally:
        for _ in loop.leave(loop.finished_rows()):
            pass  # the row's K/V stay in the prefix cache
        loop.close()


def compared(plain: Run, other: Run) -> dict[str, Any]:
    """The line for a pair of runs."""
    equal = [a == b for a, b in zip(plain.tokens, other.tokens, strict=False)]
    line = {name: value for name, value in asdict(other).items() if name != "tokens"}
    ratio = plain.seconds / other.seconds
    return line | {"ratio": ratio, "agreement": sum(equal) / len(plain.tokens), "answered": other.answered}


def show(line: dict[str, Any]) -> None:
    answered = {None: "", True: ", answered", False: ", not answered"}[line["answered"]]
    print(
        f"{line['kind']:8} {line['prompt']:5}  {line['spec']}: {line['per_forward']:.2f} tokens per forward, "
        f"{line['seconds']:.2f} s, ratio {line['ratio']:.2f}, agreement {line['agreement']:.2f}{answered}, "
        f"K/V {line['kv_bytes'] / 2**20:.0f} MiB",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, a folder or an embedded name of a chat model")
    parser.add_argument("-s", "--sampler", action="append", required=True, help="a spec; may be repeated")
    parser.add_argument("--tokens", default="4000,8000", help="lengths of the prompts")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"kinds of prompts, among {', '.join(KINDS)}")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    parser.add_argument("--repeats", type=int, default=1, help="pairs of each prompt and spec")
    parser.add_argument("--out", type=Path, help="a JSON file for all lines")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    model = pardec.load(args.model, dtype="float32", device="cpu").language_model
    model.cache_prefixes(4 << 30)
    print(f"{model.name}, float32, one thread of {processor()}, torch {torch.__version__}")
    lines: list[dict[str, Any]] = []
    for kind in args.kinds.split(","):
        for tokens in map(int, args.tokens.split(",")):
            text = content(model.tokenizer, kind, tokens)
            for spec in args.sampler:
                for _ in range(args.repeats):
                    plain = run(model, "sequential", kind, text, args.new)
                    lines.append(compared(plain, run(model, spec, kind, text, args.new)) | {"plain": plain.answered})
                    show(lines[-1])
    for spec in args.sampler:
        own = [line for line in lines if line["spec"] == spec]
        print(f"{spec}: median ratio {statistics.median(line['ratio'] for line in own):.2f} of {len(own)} pairs")
    if args.out:
        args.out.write_text(json.dumps(lines, indent=1) + "\n")
    wrong = [line for line in lines if line["exact"] != "relaxed" and line["agreement"] < 1]
    for line in wrong:
        print(f"{line['spec']} promises {line['exact']}, and differs on {line['kind']} of {line['prompt']} tokens")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
