"""HTTP client for providers.

    async with Client() as client:
        reply = await client.send(call)                    a complete reply
        async for event in client.stream(call): ...        the events of a streamed reply
        await client.stream(call).aclose()                 closes the connection

    call = Call(endpoint=settings.endpoint(provider), adapter=adapter, wire=adapter.to_wire(…).wire, context=context)

Use one ``Client`` per event loop; it keeps one connection pool. A failure is a value, not an exception: a reply with a
fault, or a stream that ends with ``StreamError``. A stream ends with exactly one ``MessageComplete`` or
``StreamError``. Rate limits, server errors and network errors are retried as ``Retries`` specifies, and never after
the first event of a stream. ``CallLog`` records attempts, headers and times of a call.

Invariant: an API key is sent only to the origin of its endpoint.
"""

from __future__ import annotations

from dragoman.client.call import Call, CallLog, Limits, Retries, Timeouts
from dragoman.client.client import Client

__all__ = ["Call", "CallLog", "Client", "Limits", "Retries", "Timeouts"]
