"""Models: tokens in, logits out (decoder stack, KV cache, kernels, checkpoint families)."""

if __name__ != "pardec.models":
    raise ImportError(
        f"import this package as 'pardec.models', not as {__name__!r}: under two names it would be loaded twice"
    )
