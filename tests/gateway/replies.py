"""Replies of an upstream for all endpoints of all dialects, by the path and the body of the request."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman import dialects
from dragoman.event import unfold
from dragoman.exchange import Reply, StopReason
from dragoman.message import TextBlock, TokenUsage
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer, make_stream

REPLY: Final = Reply(
    content=(TextBlock("Hi"),),
    stop_reason=StopReason.END_TURN,
    model="m",
    usage=TokenUsage(input_tokens=3, output_tokens=1),
)
_CALLS: Final = {  # by the end of the path: dialect, and whether it streams; None: the body decides
    "/messages": ("anthropic", None),
    "/chat/completions": ("openai_chat", None),
    "/responses": ("openai_responses", None),
    "/api/chat": ("ollama", None),
    "/v2/chat": ("cohere", None),
    ":generateContent": ("gemini", False),
    ":streamGenerateContent": ("gemini", True),
    "/converse": ("bedrock_converse", False),
    "/converse-stream": ("bedrock_converse", True),
}
_OTHERS: Final = {
    "/messages/count_tokens": {"input_tokens": 3},
    "/responses/input_tokens": {"input_tokens": 3},
    ":countTokens": {"totalTokens": 3},
    "/count-tokens": {"inputTokens": 3},
    "/responses/compact": {"id": "x", "object": "response.compaction", "output": []},
    "/embeddings": {"object": "list", "data": [{"index": 0, "embedding": [0.1]}], "usage": {"prompt_tokens": 1}},
    ":embedContent": {"embedding": {"values": [0.1]}},
    ":batchEmbedContents": {"embeddings": [{"values": [0.1]}]},
    "/api/embed": {"embeddings": [[0.1]]},
    "/v2/embed": {"embeddings": {"float": [[0.1]]}},
}


def answer_call(request: ReceivedRequest) -> Answer:
    """Return the answer to a request of any endpoint."""
    path = request.path.partition("?")[0]
    other = next((wire for end, wire in _OTHERS.items() if path.endswith(end)), None)
    if other is not None:
        return make_answer(msgspec.json.encode(other))
    dialect, stream = next(call for end, call in _CALLS.items() if path.endswith(end))
    if stream is None:
        stream = _is_streamed(request.body)
    return make_stream([write_stream(dialect)]) if stream else make_answer(write_whole(dialect))


def _is_streamed(body: bytes) -> bool:
    return b'"stream":true' in body.replace(b" ", b"")


def write_whole(dialect: str, reply: Reply = REPLY) -> bytes:
    """Return a reply in a dialect, without a stream."""
    return msgspec.json.encode(dialects.load(dialect).write_reply(reply).wire)


def write_stream(dialect: str, reply: Reply = REPLY) -> bytes:
    """Return a reply in a dialect as a stream."""
    writer: Any = dialects.load(dialect).stream_writer()
    return b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
