"""Calling providers: the only room that talks to them.

    async with Client() as client:
        reply = await client.send(call)                    a whole answer
        async for event in client.stream(call): ...        the events of one that is streamed
        await client.stream(call).aclose()                 stop: the connection is closed

    call = Call(endpoint=settings.endpoint(provider), adapter=adapter, wire=adapter.to_wire(…).wire, context=context)

A ``Client`` keeps one pool of connections and is shared by everybody in a loop. What can fail on the way is a value and
not an exception: a reply with a fault, or a stream that ends in a ``StreamError``. A stream ends with exactly one of
``MessageComplete`` and ``StreamError``. Asked again is only what may work later (rate limits, failures of the server
and of the network), as often as ``Retries`` says, and never after the first event was given out. ``Journal`` is filled
in for those who want to know how it went. The one rule: a key goes to the address it was given for, and nowhere else.
"""

from __future__ import annotations

from dragoman.client.call import Call, CallLog, Limits, Retries, Timeouts
from dragoman.client.client import Client

__all__ = ["Call", "CallLog", "Client", "Limits", "Retries", "Timeouts"]
