"""Cohere Chat, version 1: https://docs.cohere.com/v1/reference/chat; the shapes come from recorded exchanges.

A request has the last message, the history before it and a preamble. Calls have no ids: a result repeats its call.
Parameters of tools have a name, a type of Python and a description. Requests and replies are arranged as those of
version 2. Streams are lines of JSON; the last one has the whole reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects import cohere
from dragoman.dialects.cohere_v1.body import NAME as NAME
from dragoman.dialects.cohere_v1.body import SUPPORT as SUPPORT
from dragoman.dialects.cohere_v1.body import read_reply as read_reply
from dragoman.dialects.cohere_v1.body import read_request as read_request
from dragoman.dialects.cohere_v1.body import write_reply as write_reply
from dragoman.dialects.cohere_v1.body import write_request as write_request
from dragoman.dialects.cohere_v1.stream import stream_reader as stream_reader
from dragoman.dialects.cohere_v1.stream import stream_writer as stream_writer
from dragoman.exchange import Fault, Written

# Options without a field in the request, and why nothing is lost.
IMPLIED_OPTIONS: Final = cohere.IMPLIED_OPTIONS
BASES: Final = ("cohere",)  # dialects whose own options it writes


def looks_like(wire: dict[str, Any]) -> bool:
    """Return whether a request has the fields of this API."""
    return isinstance(wire.get("message"), str) and "messages" not in wire and "role" not in wire


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault."""
    return cohere.read_error(status, headers, body).replace(provider=NAME)


def write_error(fault: Fault) -> Written:
    """Write a fault as an error of this API."""
    return cohere.write_error(fault)
