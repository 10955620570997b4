"""Times rows of one prompt whose K/V are stored once, compared with rows that each store them.

    python benchmarks/shared_prefix.py [--model tiny-llama ...] [--tokens 400 ...] [--rows 8 2] [--sampler sequential]
                                       [--new 24] [--repeats 3] [--out NAME]

In each repeat both decode the same rows at temperature 1, one after the other; tokens of both are compared. Seconds are
process time of one thread, which other load on the machine changes little; figures are medians, ratios those of each
repeat's pair.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import pardec
from pardec.environment import processor
from pardec.requests.call import Call
from pardec.samplers.speculative import forward_features as shared_prompt
from pardec.samplers.speculative.contracts import SpeculativeSampler
from pardec.samplers.speculative.loop import VerifyLoop

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from prefix_reuse import examples  # noqa: E402

PAGE = """# One prompt, several rows: K/V in memory once

`{command}`

Weights and K/V in float32 unless the file has fewer bits, one thread of {processor}, torch {torch}. Rows of one prompt
are decoded with its keys and values in memory once (`shared`) and in each row (`each`), in pairs. Milliseconds of process
time are medians of {repeats} repeats, a step is the median of those after the prompt, and ratios are medians of the
pairs: above 1, sharing is faster. `even at` is the number of steps at which slower steps would have used up what the
prompt saved. Prompts are shared from {least} slots saved on; here they always are.
Tokens `differ` where rounding decided a draw: scores of equal texts agree to 1e-5, and a draw between two tokens of
probability 1e-6 or less can fall to either.

| model | sampler | rows | prompt | MiB each | shared | prompt each | shared | ratio | step each | shared | ratio | even at | tokens |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501


@dataclass(frozen=True)
class Timed:
    """The result of one call."""

    nbytes: int  # bytes of K and V
    prompt: float  # seconds
    step: float
    tokens: np.ndarray


def decode(model: pardec.Model, call: Call, share: bool) -> Timed:
    """Decodes all rounds of a call."""
    assert isinstance(call.sampler, SpeculativeSampler), "an autoregressive model"
    start, steps = time.process_time(), []
    loop = VerifyLoop(model.language_model, call.sampler, replace(call.request, share_prompt=share))
    nbytes = loop.forward.cache.nbytes
    loop.round()
    prompt = time.process_time() - start
    while len(loop.text):
        start = time.process_time()
        loop.round()
        steps.append(time.process_time() - start)
        for _ in loop.retire():
            pass
    loop.close()
    return Timed(nbytes, prompt, statistics.median(steps), loop.recorder.tokens)


def line(model: pardec.Model, sampler: str, rows: int, tokens: int, new: int, repeats: int) -> str:
    """A line of the table."""
    arguments = {"sampler": sampler, "max_new_tokens": new, "temperature": 1.0, "stop_ids": [], "seed": 3}
    call = model.prepare(input_ids=[examples(model, tokens)], num_return_sequences=rows, **arguments)
    pairs = [(decode(model, call, False), decode(model, call, True)) for _ in range(repeats)]

    def median(values: Iterable[float], scale: float = 1000, digits: int = 1) -> str:
        return f"{scale * statistics.median(values):.{digits}f}"

    gain = statistics.median(each.prompt - shared.prompt for each, shared in pairs)
    loss = statistics.median(shared.step - each.step for each, shared in pairs)
    same = all((each.tokens == shared.tokens).all() for each, shared in pairs)
    columns = [
        model.name,
        sampler,
        str(rows),
        str(tokens),
        *(f"{each.nbytes / 2**20:.1f}" for each in pairs[0]),
        *(median(pair[at].prompt for pair in pairs) for at in (0, 1)),
        median((each.prompt / shared.prompt for each, shared in pairs), 1, 2),
        *(median((pair[at].step for pair in pairs), digits=2) for at in (0, 1)),
        median((each.step / shared.step for each, shared in pairs), 1, 2),
        "never" if loss <= 0 else f"{gain / loss:.0f}",
        "same" if same else "differ",
    ]
    return f"| {' | '.join(columns)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", nargs="*", default=["tiny-llama"])
    parser.add_argument(
        "--tokens",
        nargs="*",
        type=int,
        default=[400],
        help="lengths of the prompts; those beyond the model are left out",
    )
    parser.add_argument("--rows", nargs="*", type=int, default=[8, 2])
    parser.add_argument("--sampler", nargs="*", default=["sequential"])
    parser.add_argument("--new", type=int, default=24, help="tokens of each row")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "shared_prefix", help="path without suffix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = ["python", "benchmarks/shared_prefix.py", *(Path(each).name for each in sys.argv[1:])]
    page = PAGE.format(
        command=" ".join(command),
        processor=processor(),
        torch=torch.__version__,
        repeats=options.repeats,
        least=shared_prompt.LEAST_SLOTS,
    )
    shared_prompt.LEAST_SLOTS = 0
    for name in options.model:
        model = pardec.load(name, device="cpu")
        room = (model.language_model.max_positions or 2**20) - options.new
        line(model, "sequential", 2, 64, 8, 1)  # warms up
        for sampler in options.sampler:
            for tokens in options.tokens:
                for rows in options.rows if tokens <= room else ():
                    page += line(model, sampler, rows, tokens, options.new, options.repeats)
                    print(page.splitlines()[-1], flush=True)
    options.out.with_suffix(".md").write_text(page)


if __name__ == "__main__":
    main()
