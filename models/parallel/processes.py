"""Setup and end of the process group of a run."""

from __future__ import annotations

import atexit
import os
import socket


def find_interface() -> None:
    """Sets gloo's network interface to loopback if gloo would find none by the host's name."""
    one_machine = os.environ["WORLD_SIZE"] == os.environ.get("LOCAL_WORLD_SIZE")
    if not one_machine or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]


def destroy_group_at_exit() -> None:
    """Ends the process group before the interpreter ends.

    gloo's threads let go of a collective's tensors some time after it is done, and need the interpreter for that: one
    that comes when the interpreter is gone aborts the process, and torchrun then calls a finished run a failed one.
    """
    atexit.unregister(_destroy_group)  # once, however often a process asks
    atexit.register(_destroy_group)


def _destroy_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
