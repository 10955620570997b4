"""How processes beside each other find one another."""

from __future__ import annotations

import os
import socket


def find_interface() -> None:
    """Names the loopback interface to gloo where it would find none: it looks by the machine's name, and gives up."""
    one_machine = os.environ["WORLD_SIZE"] == os.environ.get("LOCAL_WORLD_SIZE")
    if not one_machine or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
