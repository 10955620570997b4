"""Turns logits into tokens: the registry, the loops and every published method, one file each."""

if __name__ != "pardec.samplers":
    raise ImportError(
        f"this folder is the package 'pardec.samplers' and was imported as {__name__!r}, which would load it twice; "
        "write 'import pardec.samplers'"
    )
