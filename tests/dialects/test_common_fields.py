"""Fields that several providers share are mapped if both dialects have them, and are losses otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman import dialects, fold
from dragoman.event import AlternativeComplete, MessageComplete, MessageStart, TextDelta, unfold
from dragoman.exchange import Reply, StopReason
from dragoman.message import (
    Alternative,
    CacheHint,
    Citation,
    ImageBlock,
    ImageSource,
    TextBlock,
    ThinkingBlock,
    TokenLogprob,
    ToolResultBlock,
    ToolUseBlock,
)

ANTHROPIC, BEDROCK, CHAT, GEMINI, RESPONSES = (
    dialects.load(name) for name in ("anthropic", "bedrock_converse", "openai_chat", "gemini", "openai_responses")
)
PAGE = Citation(start=0, end=4, url="https://example.com/rome", title="Rome")


def completion(*texts: str, **choice: Any) -> dict[str, Any]:
    """Return a chat completion with one choice for each text."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            **choice,
        }
        for index, text in enumerate(texts)
    ]
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt"}
    return {**head, "choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}


def stream(dialect: Any, reply: Reply) -> tuple[Reply, Any]:
    """Return a reply after a stream of the dialect, and the writer."""
    writer, reader = dialect.stream_writer(), dialect.stream_reader()
    data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
    return fold([*reader.feed(data), *reader.close()]), writer


def test_several_choices_round_trip() -> None:
    wire = completion("Hi.", "Ho.", "Hey.")
    reply = CHAT.read_reply(wire)
    assert [block.text for block in reply.content] == ["Hi."]
    assert [each.content[0].text for each in reply.alternatives] == ["Ho.", "Hey."]
    assert CHAT.write_reply(reply).wire == wire
    gemini = GEMINI.write_reply(reply)
    assert gemini.losses == ()
    assert [entry["content"]["parts"][0]["text"] for entry in gemini.wire["candidates"]] == ["Hi.", "Ho.", "Hey."]
    assert GEMINI.read_reply(gemini.wire).alternatives[1].content[0].text == "Hey."
    (loss,) = ANTHROPIC.write_reply(reply).losses
    assert (loss.block_type, loss.reason) == ("alternatives", "this API returns one answer")


def test_several_choices_round_trip_in_stream() -> None:
    chunks = [
        {"id": "1", "model": "m", "created": 1, "choices": [{"index": index, "delta": {"content": text}}]}
        for index, text in ((0, "H"), (1, "Ho"), (0, "i."), (1, "."))
    ]
    ends = [{"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in (0, 1)]
    data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (*chunks, *ends)) + "data: [DONE]\n\n"
    reader = CHAT.stream_reader()
    events = [*reader.feed(data.encode()), *reader.close()]
    assert sum(isinstance(event, AlternativeComplete) for event in events) == 1
    reply = fold(events)
    assert reply.content[0].text == "Hi."
    assert reply.alternatives[0].content[0].text == "Ho."
    for dialect in (CHAT, GEMINI):
        again, writer = stream(dialect, reply)
        assert again.alternatives[0].content[0].text == "Ho."
        assert writer.losses == ()


CALL = ToolUseBlock("tu_00000000000000000000000001", "run", {"input": "print(3)"})
LOSSY_REPLIES = {
    "details": Reply(
        content=(
            ThinkingBlock("Hm.", "sig"),
            TextBlock("Rome is in Italy.", citations=(PAGE,), token_logprobs=(TokenLogprob("Rome", -0.5),)),
        ),
        stop_reason=StopReason.END_TURN,
        alternatives=(Alternative(content=(TextBlock("Ho."),), stop_reason=StopReason.END_TURN),),
    ),
    "image": Reply(
        content=(ImageBlock(ImageSource("base64", "iVBORw0K"), "image/png"), TextBlock("There.")),
        stop_reason=StopReason.END_TURN,
    ),
    "further answer": Reply(
        content=(TextBlock("Hi."),),
        stop_reason=StopReason.END_TURN,
        alternatives=(
            Alternative(
                content=(
                    ThinkingBlock("Hm.", "sig"),
                    ImageBlock(ImageSource("base64", "iVBORw0K"), "image/png"),
                    TextBlock("Ho."),
                ),
                stop_reason=StopReason.END_TURN,
            ),
        ),
    ),
    "call": Reply(content=(CALL,), stop_reason=StopReason.TOOL_USE),
    "custom call": Reply(content=(CALL.replace(free_form=True),), stop_reason=StopReason.TOOL_USE),
    "no call": Reply(content=(TextBlock("Wait."),), stop_reason=StopReason.TOOL_USE),
}


@pytest.mark.parametrize("case", LOSSY_REPLIES)
@pytest.mark.parametrize("name", dialects.names())
def test_stream_writer_reports_losses(name: str, case: str) -> None:
    dialect, reply = dialects.load(name), LOSSY_REPLIES[case]
    writer = dialect.stream_writer()
    for event in unfold(reply):
        writer.feed(event)
    writer.close()
    whole = {loss.block_type for loss in dialect.write_reply(reply).losses}
    assert {loss.block_type for loss in writer.losses} == whole - {"fault"}


def test_blocks_of_further_answer_are_written_or_losses() -> None:
    reply = LOSSY_REPLIES["further answer"]
    for dialect, lost in ((CHAT, ["thinking", "image"]), (GEMINI, ["thinking"])):
        written = dialect.write_reply(reply)
        assert [loss.block_type for loss in written.losses] == lost
        (again,) = dialect.read_reply(written.wire).alternatives
        assert sorted([*lost, *(block.type for block in again.content)]) == ["image", "text", "thinking"]


def test_citation_converts_between_dialects_with_citations() -> None:
    reply = Reply(content=(TextBlock("Rome is in Italy.", citations=(PAGE,)),), stop_reason=StopReason.END_TURN)
    for dialect in (CHAT, RESPONSES, GEMINI):
        again = dialect.read_reply(dialect.write_reply(reply).wire)
        assert again.content[0].citations == (PAGE,)
        assert stream(dialect, reply)[0].content[0].citations == (PAGE,)
    for dialect in (ANTHROPIC, BEDROCK):
        (citation,) = dialect.read_reply(dialect.write_reply(reply).wire).content[0].citations
        assert (citation.url, citation.title) == (PAGE.url, PAGE.title)


def test_gemini_stream_citation_has_its_place_in_the_joined_text() -> None:
    whole = PAGE.replace(start=None, end=None)
    content = (
        TextBlock("Köln. "),
        TextBlock("Rome is old. ", citations=(whole,)),
        TextBlock("Yes.", citations=(PAGE,)),
    )
    reply = Reply(content=content, stop_reason=StopReason.END_TURN)
    (text,) = stream(GEMINI, reply)[0].content
    assert [text.text[cited.start : cited.end] for cited in text.citations] == ["Rome is old. ", "Yes."]
    reply = Reply(content=(content[0], CALL, content[1]), stop_reason=StopReason.TOOL_USE)
    *_, last = stream(GEMINI, reply)[0].content
    assert [(cited.start, cited.end) for cited in last.citations] == [(0, 13)]


def test_gemini_citation_offsets_are_bytes() -> None:
    cited = TextBlock("Köln liegt am Rhein.", citations=(PAGE,))
    wire = GEMINI.write_reply(Reply(content=(cited,), stop_reason=StopReason.END_TURN)).wire
    (support,) = wire["candidates"][0]["groundingMetadata"]["groundingSupports"]
    assert support["segment"] == {"endIndex": 5, "text": "Köln"}
    assert GEMINI.read_reply(wire).content[0].citations == (PAGE,)


def test_token_probabilities_are_read_and_mapped() -> None:
    token = {"token": "Hi", "logprob": -0.25, "bytes": [72, 105], "top_logprobs": []}
    wire = completion("Hi", logprobs={"content": [token], "refusal": None})
    reply = CHAT.read_reply(wire)
    assert reply.content[0].token_logprobs == (TokenLogprob("Hi", -0.25, (72, 105)),)
    assert CHAT.write_reply(reply).wire == wire
    responses = RESPONSES.write_reply(reply).wire
    assert responses["output"][0]["content"][0]["logprobs"] == [token]
    chosen = GEMINI.write_reply(reply).wire["candidates"][0]["logprobsResult"]["chosenCandidates"]
    assert chosen == [{"token": "Hi", "logProbability": -0.25}]
    request = RESPONSES.write_request(RESPONSES.read_request({"model": "m", "input": "Hi"}).replace()).wire
    assert "logprobs" not in str(request)


def test_cache_hints_convert_between_apis() -> None:
    hint = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tool = {"name": "f", "input_schema": {"type": "object"}, **hint}
    wire = {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief.", **hint}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi.", **hint}]}],
        "tools": [tool],
    }
    request = ANTHROPIC.read_request(wire)
    assert request.messages[0].content[0].cache_hint == CacheHint("1h")
    assert ANTHROPIC.write_request(request).wire == wire
    bedrock = BEDROCK.write_request(request).wire
    point = {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert bedrock["system"] == [{"text": "Be brief."}, point]
    assert bedrock["messages"][0]["content"] == [{"text": "Hi."}, point]
    assert bedrock["toolConfig"]["tools"][1] == point
    assert ANTHROPIC.write_request(BEDROCK.read_request(bedrock)).wire["messages"] == wire["messages"]
    written = CHAT.write_request(request)
    assert written.losses == ()
    assert {note.block_type for note in written.notes} == {"block.cache_hint", "tool.cache_hint"}
    assert {note.kind for note in written.notes} == {"hint"}


def test_cache_hint_does_not_change_message_hash() -> None:
    assert TextBlock("a") == TextBlock("a", cache_hint=CacheHint())
    assert hash(TextBlock("a")) == hash(TextBlock("a", token_logprobs=(TokenLogprob("a", 0),)))
    assert TextBlock("a") != TextBlock("a", citations=(PAGE,))


def test_custom_tool_calls_are_calls() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "count", "input": "4 + 4"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "8"}
    tool = {
        "type": "custom",
        "name": "count",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"},
    }
    wire = {"model": "m", "input": [{"role": "user", "content": "Go."}, call, output], "tools": [tool]}
    request = RESPONSES.read_request(wire)
    block = request.messages[1].content[0]
    assert isinstance(block, ToolUseBlock)
    assert block.free_text == "4 + 4"
    assert isinstance(request.messages[2].content[0], ToolResultBlock)
    assert RESPONSES.write_request(request).wire == wire
    chat = CHAT.write_request(request).wire
    assert chat["tools"][0]["custom"]["format"]["grammar"] == {"syntax": "lark", "definition": "start: A"}
    assert chat["messages"][1]["tool_calls"][0]["custom"] == {"name": "count", "input": "4 + 4"}
    back = RESPONSES.write_request(CHAT.read_request(chat)).wire["input"]
    assert [item.get("type") for item in back[1:]] == ["custom_tool_call", "custom_tool_call_output"]
    anthropic = ANTHROPIC.write_request(request)
    assert anthropic.wire["messages"][1]["content"][0]["input"] == {"input": "4 + 4"}
    assert [loss.block_type for loss in anthropic.losses] == ["tool.grammar"]


def test_web_search_is_mapped_to_target() -> None:
    tool = {"type": "web_search_20250305", "name": "web_search", "allowed_domains": ["a.com"], "max_uses": 2}
    question = [{"role": "user", "content": "Go."}]
    request = ANTHROPIC.read_request({"model": "m", "max_tokens": 9, "messages": question, "tools": [tool]})
    written = RESPONSES.write_request(request)
    assert written.wire["tools"] == [{"type": "web_search", "filters": {"allowed_domains": ["a.com"]}}]
    assert written.losses == ()
    assert [note.reason for note in written.notes] == ["the web_search tool of this API, without max_uses"]
    assert GEMINI.write_request(request).wire["tools"] == [{"googleSearch": {}}]
    (loss,) = CHAT.write_request(request).losses
    assert loss.reason == "a web_search tool of anthropic"


def test_generated_image_is_an_image_block() -> None:
    part = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0K"}}
    wire = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}]}
    reply = GEMINI.read_reply(wire)
    assert reply.content == (ImageBlock(ImageSource("base64", "iVBORw0K"), "image/png"),)
    assert GEMINI.write_reply(reply).wire == wire
    (item,) = RESPONSES.write_reply(reply).wire["output"]
    assert (item["type"], item["result"]) == ("image_generation_call", "iVBORw0K")
    assert RESPONSES.read_reply(RESPONSES.write_reply(reply).wire).content == reply.content


def read_bytes(dialect: Any, data: bytes) -> Reply:
    reader = dialect.stream_reader()
    return fold([*reader.feed(data), *reader.close()])


@pytest.mark.parametrize("start", [4, 3_004])
def test_streamed_cohere_citation_has_offsets_and_text(start: int) -> None:
    cohere = dialects.load("cohere")
    text = "Rom " * 1_000
    cited = PAGE.replace(start=start, end=start + 3)
    reply = Reply(content=(TextBlock(text, citations=(cited,)),), stop_reason=StopReason.END_TURN)
    events = (MessageStart("m"), *(TextDelta(0, "Rom ") for _ in range(1_000)), TextDelta(0, "", None, (cited,)))
    writer = cohere.stream_writer()
    data = b"".join(
        [*(writer.feed(event) for event in (*events, MessageComplete(StopReason.END_TURN))), writer.close()]
    )
    assert b'"start":%d,"end":%d,"text":"Rom"' % (start, start + 3) in data
    again, whole = read_bytes(cohere, data), cohere.read_reply(cohere.write_reply(reply).wire)
    assert again.content[0].citations == whole.content[0].citations
    reader, writer = cohere.stream_reader(), cohere.stream_writer()
    read = [*reader.feed(data), *reader.close()]
    assert b"".join([*(writer.feed(event) for event in read), writer.close()]) == data


def test_cohere_citation_belongs_to_the_part_of_its_index() -> None:
    cohere = dialects.load("cohere")
    cited = PAGE.replace(start=0, end=4, source_id="d1")
    content = (TextBlock("I looked."), TextBlock("Rome is old.", citations=(cited,)))
    reply = Reply(content=content, stop_reason=StopReason.END_TURN)
    wire = cohere.write_reply(reply).wire
    (citation,) = wire["message"]["citations"]
    assert (citation["content_index"], citation["text"]) == (1, "Rome")
    assert cohere.read_reply(wire).content == content
    assert stream(cohere, reply)[0].content == content
    del citation["content_index"]
    assert [len(block.citations) for block in cohere.read_reply(wire).content] == [1, 0]


@pytest.mark.parametrize(("kind", "counts"), [("TEXT_CONTENT", [1, 0]), ("PLAN", [0, 1]), ("THINKING_CONTENT", [0, 0])])
def test_cohere_citation_belongs_to_text_or_plan(kind: str, counts: list[int]) -> None:
    cohere = dialects.load("cohere")
    source = {"type": "document", "id": "d1", "document": {"title": "Rome"}}
    parts = [{"type": "thinking", "thinking": "Rome?"}, {"type": "text", "text": "Rome is old."}]
    citation = {"start": 0, "end": 4, "text": "Rome", "sources": [source], "type": kind}
    message = {"role": "assistant", "content": parts, "tool_plan": "Rome.", "citations": [citation]}
    wire = {"id": "1", "message": message, "finish_reason": "COMPLETE"}
    reply = cohere.read_reply(wire)
    streamed, _ = stream(cohere, reply)
    for again in (reply, streamed):
        assert [len(block.citations) for block in again.content if isinstance(block, TextBlock)] == counts
        assert cohere.write_reply(again).wire == wire


def test_ollama_stream_logprobs_may_follow_their_text() -> None:
    line = b'{"model":"m","message":{"role":"assistant","content":"Rome"},"done":false}\n'
    known = line.replace(b'"Rome"', b'"","logprobs":0').replace(
        b',"logprobs":0}', b'},"logprobs":[{"token":"Rome","logprob":-0.5}]'
    )
    end = b'{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}\n'
    reply = read_bytes(dialects.load("ollama"), line + known + end)
    assert reply.content[0].token_logprobs == (TokenLogprob("Rome", -0.5),)
