"""How far methods for vectors are from the law that they speed up, on toys whose target is known or can be sampled.

    python benchmarks/continuous_distributions.py [-n 50000] [--markdown benchmarks/continuous_distributions.md]

Toys: six tokens in four groups, each depending on all tokens before it; draft and target differ in means and in
deviations. Each row draws as many pictures with a method, and with `mar` under other seeds, and compares them: the
largest distance of Kolmogorov and Smirnov over all numbers of a picture with its p times the numbers compared, the
energy distance of whole pictures in standard errors, and the largest shift of a mean and of a deviation, in target
deviations.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.samplers.vector_toys import energy, generate, kolmogorov, latents_of, pair  # noqa: E402

TOKENS, STEPS = 6, 4
TOYS = {  # numbers a token, transitions, curved, how far apart
    "T=1, d=1": (1, 1, False, 1.0),
    "T=6, d=2, curved": (2, 6, True, 1.0),
    "T=20, d=2, curved": (2, 20, True, 1.0),
}
CSPD = f"cspd:draft=d,steps={STEPS},prefill=0,k="
METHODS = {  # spec, and what `last` the `mar` that it is compared with has
    f"mar:steps={STEPS}": "map",
    "draft alone": "map",
    f"{CSPD}3": "map",
    f"{CSPD}3,derived=true": "map",
    f"{CSPD}3,tau=1,derived=true": "map",
    f"{CSPD}1": "map",
    f"{CSPD}1,mode=exact,last=map": "map",
    f"{CSPD}3,mode=exact": "x1",
    f"{CSPD}3,mode=exact,last=noise": "noise",
    f"{CSPD}3,mode=exact,slack=2": "x1",
    f"seeded_jacobi:steps={STEPS},window=3,tol=0.1": "map",
}


def compared(made: np.ndarray, other: np.ndarray) -> str:
    """The figures of a row."""
    ours, theirs = (each.reshape(len(each), -1) for each in (made, other))
    tests = [kolmogorov(x, y) for x, y in zip(ours.T, theirs.T, strict=True)]
    gaps = [distance(x, y) for x, y in zip(ours.T, theirs.T, strict=True)]
    shift = np.abs(ours.mean(0) - theirs.mean(0)) / theirs.std(0)
    wider = np.abs(ours.std(0) / theirs.std(0) - 1)
    found = energy(ours, theirs)
    p = min(1.0, min(tests) * len(tests))
    return f"{max(gaps):.4f} | {p:.1e} | {found[0]:.5f} | {found[1]:.1f} | {shift.max():.3f} | {wider.max():.3f}"


def distance(sample: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two distribution functions."""
    both = np.concatenate((sample, other))
    reached = [np.searchsorted(np.sort(each), both, "right") / len(each) for each in (sample, other)]
    return float(np.abs(reached[0] - reached[1]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, default=50_000, help="pictures")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    head = ["toy", "method", "accepted", "largest KS", "p", "energy", "in errors", "mean", "deviation"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for toy, (size, steps, curved, far) in TOYS.items():
        target, draft = pair(TOKENS, size, steps, curved=curved, far=far)
        base = {}
        for number, (spec, last) in enumerate(METHODS.items()):
            if steps == 1 and "mode=exact" in spec and last != "noise":
                continue  # no transition before the last one is random
            started = time.perf_counter()
            if last not in base:
                base[last] = latents_of(generate(target, f"mar:steps={STEPS},last={last}", count=given.n, seed=1))
            model, call = (draft, f"mar:steps={STEPS}") if spec == "draft alone" else (target, spec)
            end = generate(model, call, draft=draft, count=given.n, seed=100 + number)
            tested = sum(map(sum, end.trace.drafted))
            share = f"{sum(map(sum, end.trace.accepted)) / tested:.3f}" if tested else ""
            name = spec if spec == "draft alone" else f"`{spec}`"
            lines.append(f"| {toy} | {name} | {share} | {compared(latents_of(end), base[last])} |")
            print(lines[-1], f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    text = "\n".join(lines)
    print(text)
    if given.markdown:
        told = " ".join((__doc__ or "").split("\n\n")[2].split())
        given.markdown.write_text(
            "# How far methods for vectors are from the target's distribution\n\n"
            f"`python benchmarks/continuous_distributions.py -n {given.n}`. {told}\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
