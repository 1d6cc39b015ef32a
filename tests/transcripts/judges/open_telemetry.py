"""The types and conventions of OpenTelemetry, and the output of instrumentations."""

import json
import random
import warnings
from pathlib import Path

import jsonschema
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util.genai import types as t
from opentelemetry.util.genai.utils import gen_ai_json_dumps
from pydantic import TypeAdapter
from pydantic_ai import Agent
from pydantic_ai import messages as m
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel

warnings.simplefilter("ignore")  # old versions are written too
SCHEMAS = json.loads((Path(__file__).parent / "open_telemetry.schema.json").read_text("utf-8"))
TEXTS = ["Hello.", "", "Grüße, 世界 🙂", 'a "quoted"\nline\twith \u2028 and \0']
VALUES = ["done", "", None, 0, 12.5, True, [], {}, ["a"], [1, {"x": None}], {"rows": [{"id": 1}]}, [{"type": "text"}]]


def find_violations(value):
    """Return the paths and reasons where a value does not match the schema of an attribute."""
    schema = {"$defs": SCHEMAS["$defs"], **SCHEMAS[value["attribute"]]}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(value["value"])
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


def read_types(value):
    """Return the OpenTelemetry types of the parts of messages; raise if they do not match."""
    messages = TypeAdapter(list[t.InputMessage]).validate_python(value)
    return [[type(part).__name__ for part in message.parts] for message in messages]


# --- OpenTelemetry's own types ---------------------------------------------------------------------------------------


def generate(value):
    """Return random conversations, made of the types and written as instrumentations write them."""
    conversations = [
        conversation(random.Random(seed)) for seed in range(value["first"], value["first"] + value["count"])
    ]
    return [json.loads(gen_ai_json_dumps(messages)) for messages in conversations]


def conversation(chance):
    return [message(chance) for _ in range(chance.randint(1, 5))]


def message(chance):
    role = chance.choice(["system", "user", "assistant", "tool", "user", "assistant", "developer", "model", "critic"])
    parts = [part(chance) for _ in range(chance.choice([0, 1, 1, 2, 4]))]
    name = chance.choice([None, None, "Ann"])
    if role == "assistant" and chance.random() < 0.5:
        reason = chance.choice(["stop", "length", "tool_call", "content_filter", "error", "something_new", None])
        return t.OutputMessage(role, parts, reason, name)
    return t.InputMessage(role, parts, name)


def part(chance):
    text, call_id = chance.choice(TEXTS), chance.choice([None, "call_1", "call_2"])
    arguments = chance.choice([None, {}, {"path": "a"}, '{"path":  "a"}', "", '{"cut": "of', [1], 3])
    modality = chance.choice([t.Modality.IMAGE, t.Modality.AUDIO, t.Modality.VIDEO, t.Modality.DOCUMENT, "hologram"])
    media_type = chance.choice([None, "image/png", "application/pdf"])
    return chance.choice(
        [
            t.TextPart(text),
            t.TextPart(text),
            t.ReasoningPart(text),
            t.ToolCallRequestPart(arguments, "look", call_id),
            t.ToolCallResponsePart(chance.choice(VALUES), call_id),
            t.ToolCallResponsePart([t.TextPart(text), t.BlobPart("image/png", "image", b"\x89PNG")], call_id),
            t.ServerToolCallPart("web_search", {"type": "web_search", "query": text}, call_id),
            t.ServerToolCallResponsePart({"type": "web_search", "found": [1]}, call_id),
            t.CompactionPart(chance.choice([None, "c_1"]), chance.choice([None, text])),
            t.BlobPart(media_type, modality, bytes(range(200, 256))),
            t.FilePart(media_type, modality, "file-1"),
            t.UriPart(media_type, modality, "https://example.com/a"),
            t.GenericPart("something_new"),
        ]
    )


# --- pydantic-ai -----------------------------------------------------------------------------------------------------


def traces(_):
    """Return the attributes of the spans of an agent, in every version that pydantic-ai can write."""
    return [
        dict(span.attributes)
        for version in (2, 3, 4, 5, 6)
        for with_content in (True, False)
        for span in spans_of(version, with_content)
        if "gen_ai.input.messages" in span.attributes
    ]


def spans_of(version, with_content):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = InstrumentationSettings(
        tracer_provider=provider, version=version, include_content=with_content, include_binary_content=with_content
    )
    answers = [
        m.ModelResponse(
            [
                m.ThinkingPart("I have to look."),
                m.TextPart("I look."),
                m.ToolCallPart("look", {"path": "a"}, "call_1"),
                m.ToolCallPart("look", '{"path": 1}', "call_2"),
                m.NativeToolCallPart("web_search", {"q": "x"}, "srv_1", provider_name="openai"),
                m.NativeToolReturnPart("web_search", {"r": 1}, "srv_1", provider_name="openai"),
            ],
            finish_reason="tool_call",
        ),
        m.ModelResponse([m.TextPart("A picture."), m.FilePart(m.BinaryContent(b"\x89PNG", media_type="image/png"))]),
    ]
    model = FunctionModel(lambda messages, _: answers[sum(isinstance(each, m.ModelResponse) for each in messages)])
    agent = Agent(InstrumentedModel(model, settings), instructions="Be brief.", system_prompt="You read files.")

    @agent.tool_plain
    def look(path: str) -> list[object]:
        return [path, {"n": 1}, m.BinaryContent(b"\x89PNG", media_type="image/png")]

    files = [
        m.ImageUrl("https://example.com/a.png"),
        m.DocumentUrl("https://example.com/a"),
        m.UploadedFile("f", "openai"),
    ]
    recordings = [
        m.BinaryContent(b"RIFF", media_type="audio/wav"),
        m.BinaryContent(b"%PDF", media_type="application/pdf"),
    ]
    agent.run_sync(["What are these?", *files, *recordings])
    return exporter.get_finished_spans()
