"""`pardec serve`: an HTTP server with the interface of OpenAI's API."""

from __future__ import annotations

import os
from importlib.util import find_spec

import typer

from pardec.models.errors import PardecError, install

from ..requests import preflight
from . import inputs
from . import options as o
from .common import say

# PyTorch's oneDNN keeps a kernel for each of the last 1,024 shapes of matrices, and the layer above it as many
# computations: hundreds of MiB, and with one of the two bounded memory grows almost as much. Batches of a server have
# more shapes than that: its memory grows for thousands of requests. Kernels are made quickly.
_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}


@o.command
def serve(
    model: o.ModelName,
    *,
    name: o.ServedName = None,
    quiet: o.Quiet = False,
    sampling: o.ServedSampling,
    stop: o.Stop = None,
    host: o.Host = "127.0.0.1",
    port: o.Port = 8000,
    api_key: o.ApiKey = None,
    allow_origin: o.AllowOrigin = None,
    batch_size: o.ServedRows = 16,
    queue: o.Queue = 256,
    max_rows: o.MaxRows = 64,
    max_length: o.MaxLength = None,
    max_body: o.MaxBody = 4096,
    reading: o.ReadingTime = 4.0,
    receiving: o.ReceivingTime = 30.0,
    timeout: o.TimeLimit = 600.0,
    grace: o.Grace = 30.0,
    prefix_cache: o.PrefixMiB = 0,
    loading: o.ServedLoading,
) -> None:
    """Serve a model with the interface of OpenAI's API: text, chat, images, health and metrics; and a page at /.

    pardec serve tiny-llama --port 8000

    pardec serve GSAI-ML/LLaDA-8B-Instruct -s threshold:tau=0.9@dual -n 256

    Sampling options apply to requests that do not set them.
    """
    arguments = dict(sampling)
    if stop:
        arguments["stop"] = inputs.read_stop(stop)
    load_arguments = o.to_arguments(loading)
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if find_spec(package) is None:
            raise PardecError(f"pardec serve needs {package}", hint=install("serve"))
    preflight.check(model, [sampling.get("sampler")], arguments, load_arguments)

    for variable, value in _KERNELS.items():
        os.environ.setdefault(variable, value)  # before the first forward
    from ..api import load  # imported here since it imports torch
    from ..server.app import create_app
    from ..server.limits import Limits
    from ..server.run import listen, run

    limits = Limits(
        batch_size=batch_size,
        queue=queue,
        rows=max_rows,
        length=max_length,
        body=max_body * 1024,
        reading=reading,
        receiving=receiving,
        seconds=timeout,
        grace=grace,
    )
    with listen(host, port) as listening:  # before the model is read, which takes longer
        loaded = load(model, **load_arguments)
        if prefix_cache:
            loaded.cache_prefixes(prefix_cache)
        app = create_app(loaded, name=name, api_key=api_key, limits=limits, origins=allow_origin or (), **arguments)
        address = listening.getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        page = "" if loaded.imaging is not None else ", a page at /"
        say(f"{loaded.network.describe()}\nhttp://{shown}:{address[1]}/v1{page}, stop with Ctrl-C", quiet=quiet)
        try:
            run(app, listening)
        except KeyboardInterrupt:  # the way to stop it
            raise typer.Exit(130) from None
