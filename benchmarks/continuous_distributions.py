"""Compares the distributions of samplers for continuous tokens with the target's, on toy models.

    python benchmarks/continuous_distributions.py [-n 50000] [--markdown benchmarks/continuous_distributions.md]

Each row compares the images of one sampler with as many images that `mar` samples from the target. `PAGE` explains the
columns.
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
TOYS = {  # dimensions of a token, denoising steps, nonlinear, distance between draft and target
    "T=1, d=1": (1, 1, False, 1.0),
    "T=6, d=2, curved": (2, 6, True, 1.0),
    "T=20, d=2, curved": (2, 20, True, 1.0),
}
CSPD = f"cspd:draft=d,steps={STEPS},prefill=0,k="
METHODS = {  # spec, and the `last` of the `mar` that it is compared with
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
HEAD = (
    *("toy", "method", "accepted", "largest KS", "p"),
    *("energy distance", "standard errors", "mean shift", "deviation change"),
)
SIGNIFICANT = 0.001
PAGE = """# Distributions of samplers for continuous tokens

This page compares the images that a sampler gives with the target's distribution, on toy models: six tokens in four
groups, each depending on all tokens before it. Draft and target differ in means and in deviations. It is made by
`python benchmarks/continuous_distributions.py -n {count}` on one thread of a CPU, with {count} images per row; they are
compared with as many images that `mar` samples from the target with another seed.

No significant difference from the target on any toy, with p of at least {significant:g}:

{equal}

A significant difference on some toy:

{different}

Columns:

- `accepted`: the share of drafted tokens that were accepted.
- `largest KS`: the largest Kolmogorov-Smirnov statistic over all dimensions of an image, and its `p`, times the
  number of dimensions (Bonferroni).
- `energy distance`: of whole images, also in `standard errors`.
- `mean shift`, `deviation change`: the largest shift of a mean, in standard deviations of the target, and the largest
  relative change of a standard deviation.

{table}
"""


def compare(images: np.ndarray, others: np.ndarray) -> tuple[str, float]:
    """The figures of a row, and its p."""
    ours, theirs = (each.reshape(len(each), -1) for each in (images, others))
    tests = [kolmogorov(x, y) for x, y in zip(ours.T, theirs.T, strict=True)]
    largest = max(ks_statistic(x, y) for x, y in zip(ours.T, theirs.T, strict=True))
    shift = np.abs(ours.mean(0) - theirs.mean(0)) / theirs.std(0)
    change = np.abs(ours.std(0) / theirs.std(0) - 1)
    distance, errors = energy(ours, theirs)
    p = min(1.0, min(tests) * len(tests))
    return f"{largest:.4f} | {p:.1e} | {distance:.5f} | {errors:.1f} | {shift.max():.3f} | {change.max():.3f}", p


def ks_statistic(sample: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between two empirical distribution functions."""
    both = np.concatenate((sample, other))
    ours, theirs = (np.searchsorted(np.sort(each), both, "right") / len(each) for each in (sample, other))
    return float(np.abs(ours - theirs).max())


def page(count: int, table: str, p_values: dict[str, float]) -> str:
    """The page, from its table and the least p of each method."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for name, p in p_values.items():
        names[p >= SIGNIFICANT].append(name)
    equal, different = ("\n".join(f"- {name}" for name in names[same]) or "- none" for same in (True, False))
    return PAGE.format(count=count, significant=SIGNIFICANT, equal=equal, different=different, table=table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, default=50_000, help="images per row, at least 2000")
    parser.add_argument("--markdown", type=Path, help="file to write the page to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    p_values: dict[str, float] = {}
    for toy, (size, steps, curved, far) in TOYS.items():
        target, draft = pair(TOKENS, size, steps, curved=curved, far=far)
        references = {}
        for number, (spec, last) in enumerate(METHODS.items()):
            if steps == 1 and "mode=exact" in spec and last != "noise":
                continue  # with one denoising step, only the noise of the last step is random
            started = time.perf_counter()
            if last not in references:
                result = generate(target, f"mar:steps={STEPS},last={last}", count=options.n, seed=1)
                references[last] = latents_of(result)
            model, sampler = (draft, f"mar:steps={STEPS}") if spec == "draft alone" else (target, spec)
            result = generate(model, sampler, draft=draft, count=options.n, seed=100 + number)
            drafted = sum(map(sum, result.trace.drafted))
            accepted = f"{sum(map(sum, result.trace.accepted)) / drafted:.3f}" if drafted else ""
            name = spec if spec == "draft alone" else f"`{spec}`"
            figures, p = compare(latents_of(result), references[last])
            p_values[name] = min(p, p_values.get(name, 1.0))
            lines.append(f"| {toy} | {name} | {accepted} | {figures} |")
            print(lines[-1], f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    table = "\n".join(lines)
    print(table)
    if options.markdown:
        options.markdown.write_text(page(options.n, table, p_values))


if __name__ == "__main__":
    main()
