"""What drafts of one pass cannot follow, since a forward is of all of them."""

from __future__ import annotations

from pardec.models.errors import SpecError

from ...request import Request


def check(name: str, k: int, request: Request) -> None:
    """Raises SpecError for more texts of a prompt than the `k` drafts, and for what would tell drafts apart."""
    if (most := max(request.samples, default=0) + 1) > k:
        raise SpecError(
            f"{name}:k={k} writes {k} texts of a prompt and {most} are requested",
            hint=f"{name}:k={most} writes as many",
        )
    each = {
        "images": request.conditions,
        "logits processors": request.processors or request.repetition_penalty is not None,
        "allowed": request.allowed is not None,
        "response_format": any(request.grammars),
        "stop": any(request.stops),
        "min_new_tokens": request.min_new_tokens,
        "logprobs": request.logprobs is not None,
    }
    for what, present in each.items():
        if present:
            raise SpecError(f"{name} has no {what}: a forward is of all drafts", hint="leave it out")
