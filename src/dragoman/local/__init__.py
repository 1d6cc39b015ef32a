"""The embedded model: SmolLM2-135M in a llama.cpp server on this machine, without API key and network.

    async with LocalModel() as local:
        endpoint = settings.endpoint("local", base_url=await local.base_url())
        ...                                          call it like any provider of the dialect openai_chat

The extra ``local`` contains model and server. The server is a process on a free loopback port, with one thread by
default. It ends with its parent process, also when that one is killed. Nothing is downloaded.
"""

from __future__ import annotations

from dragoman.local.model import NAME, LocalModel

__all__ = ["NAME", "LocalModel"]
