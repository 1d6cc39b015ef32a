"""The types of AG-UI, of 1.0 or earlier: they validate lists of messages and generate lists."""

import warnings

from ag_ui.core import types
from pydantic import TypeAdapter

MESSAGES = TypeAdapter(list[types.Message])
IS_VERSION_1 = hasattr(types, "ContentPart")  # 1.0


def validate(wire):
    """Return the messages as the types write them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _dump(MESSAGES.validate_python(wire))


def generate(_):
    """Return conversations of many shapes by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return {name: _dump(messages) for name, messages in _conversations()}


def _dump(messages):
    return MESSAGES.dump_python(messages, mode="json", by_alias=True)


def _call(number, arguments='{"city": "Berlin", "days": 2}', **more):
    function = types.FunctionCall(name="weather", arguments=arguments)
    return types.ToolCall(id=f"call_{number}", function=function, **more)


def _media():
    """Yield every kind of part from every kind of source."""
    sources = [
        types.InputContentDataSource(value="iVBORw0KGgo=", mime_type="image/png"),
        types.InputContentUrlSource(value="https://example.com/a", mime_type="image/png"),
        types.InputContentUrlSource(value="https://example.com/b"),
    ]
    if IS_VERSION_1:
        sources.append(types.FileSource(value="file-1", provider="openai", mime_type="application/pdf"))
        sources.append(types.FileSource(value="file-2"))
    kinds = [types.ImageInputContent, types.AudioInputContent, types.VideoInputContent, types.DocumentInputContent]
    yield types.TextInputContent(text="Look.")
    for kind in kinds:
        for source in sources:
            yield kind(source=source)
            yield kind(source=source, metadata={"filename": "a.bin", "detail": "high"})
    yield types.ImageInputContent(source=sources[0], metadata="a word")
    if IS_VERSION_1:
        yield types.TextPart(text="named", id="part-1", metadata={"lang": "en"})


def _legacy():
    for media_type in ("image/png", "audio/wav", "video/mp4", "application/pdf"):
        yield types.BinaryInputContent(mime_type=media_type, data="AAAA")
        yield types.BinaryInputContent(mime_type=media_type, url="https://example.com/c", filename="c")
        yield types.BinaryInputContent(mime_type=media_type, id="stored-1")
        yield types.BinaryInputContent(mime_type=media_type, id="stored-1", data="AAAA", url="https://example.com/c")


def _conversations():
    user, assistant, tool = types.UserMessage, types.AssistantMessage, types.ToolMessage
    yield (
        "texts",
        [
            types.SystemMessage(id="s", content="Be brief."),
            types.DeveloperMessage(id="d", content="No lists.", name="dev"),
            user(id="u", content="Hi."),
            assistant(id="a", content="Hello."),
            user(id="u2", content="", name="ann"),
            assistant(id="a2", content=""),
        ],
    )
    yield (
        "a call and its answer",
        [
            user(id="u", content="Weather?"),
            assistant(id="a", tool_calls=[_call(1)]),
            tool(id="t", tool_call_id="call_1", content="Rain."),
            assistant(id="b", content="It rains."),
        ],
    )
    yield (
        "text and several calls",
        [
            assistant(id="a", content="I look.", tool_calls=[_call(1), _call(2, "{}"), _call(3, " {\n} ")]),
            tool(id="t2", tool_call_id="call_2", content="2"),
            tool(id="t1", tool_call_id="call_1", content="1", error="it timed out"),
            tool(id="t3", tool_call_id="call_3", content="", error=""),
        ],
    )
    yield "an empty text beside calls", [assistant(id="a", content="", tool_calls=[_call(1)])]
    yield "no text", [assistant(id="a"), assistant(id="b", tool_calls=[]), user(id="u", content=[])]
    yield (
        "invalid inputs",
        [assistant(id="a", tool_calls=[_call(1, '{"city": "Ber'), _call(2, "[1]"), _call(3, ""), _call(4, "null")])],
    )
    yield (
        "an id used again",
        [
            assistant(id="a", tool_calls=[_call(1)]),
            tool(id="t", tool_call_id="call_1", content="1"),
            assistant(id="b", tool_calls=[_call(1)]),
            tool(id="t2", tool_call_id="call_1", content="2"),
        ],
    )
    yield "a result without a call", [tool(id="t", tool_call_id="call_9", content="?")]
    yield (
        "thinking",
        [
            types.ReasoningMessage(id="r1", content="Hm."),
            types.ReasoningMessage(id="r2", content="", encrypted_value="c2VhbGVk"),
            assistant(id="a", content="Yes."),
            types.ReasoningMessage(id="r3", content="Alone.", encrypted_value="c2VhbGVk"),
            user(id="u", content="And?"),
            types.ReasoningMessage(id="r4", content="Again."),
            assistant(id="b", tool_calls=[_call(1, encrypted_value="c2VhbGVk")], encrypted_value="bWVzc2FnZQ=="),
            types.ReasoningMessage(id="r5", content="Before nothing."),
            assistant(id="c"),
            types.ReasoningMessage(id="r6", content="At the end."),
        ],
    )
    yield (
        "activities",
        [
            types.ActivityMessage(id="x", activity_type="PLAN", content={"steps": [1, 2]}),
            assistant(id="a", content="Done."),
            types.ActivityMessage(id="y", activity_type="SEARCH", content={}, subagent_run_id="run-2"),
        ],
    )
    yield "images and files", [user(id="u", content=list(_media()))]
    yield "a list of one text", [user(id="u", content=[types.TextInputContent(text="Hi.")])]
    yield (
        "foreign fields",
        [
            user(
                id="u", content="Hi.", metadata={"app": {"k": None}}, subagent_run_id="run-1", extra_field=[1.5, True]
            ),
            assistant(
                id="a", content="Ho.", metadata={"ag-ui": {"x": 1}, "dragoman": "not ours"}, encrypted_value="zz"
            ),
            assistant(id="b", tool_calls=[_call(1, metadata={"trace": "1"}, title="Weather")]),
            tool(id="t", tool_call_id="call_1", content="ok", metadata={}, encrypted_value="yy"),
            types.ReasoningMessage(id="r", content="", metadata={"m": 1}),
        ],
    )
    if IS_VERSION_1:
        yield (
            "answers with parts",
            [
                assistant(id="a", tool_calls=[_call(1), _call(2)]),
                tool(id="t", tool_call_id="call_1", content=list(_media())),
                tool(id="t2", tool_call_id="call_2", content=[]),
            ],
        )
    else:
        yield "binary parts", [user(id="u", content=list(_legacy()))]
