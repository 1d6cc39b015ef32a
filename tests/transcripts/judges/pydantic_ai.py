"""pydantic-ai reads and writes histories of its constructors and agents."""

import json
import random
import warnings
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pydantic_ai
from pydantic_ai import messages as m
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

warnings.simplefilter("ignore")  # it also writes deprecated parts
NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
TEXTS = ["Hello.", "", "Grüße, 世界 🙂", 'a "quoted"\nline\twith \u2028 and \0', "<tag>&amp;</tag>", "x" * 3000]
VALUES = [
    "done",
    "",
    None,
    0,
    12.5,
    True,
    [],
    {},
    ["a", "b"],
    [1, [2, {"x": None}]],
    {"rows": [{"id": 1, "name": "é"}], "total": 1e100},
    {"kind": "image-url", "url": "https://example.com/not-a-file"},
    {"error": "text"},
]


def validate(wire):
    """Read a history with the package and write it again."""
    return json.loads(m.ModelMessagesTypeAdapter.dump_json(m.ModelMessagesTypeAdapter.validate_json(json.dumps(wire))))


def validate_sparse(wire):
    """Do the same for a history with missing fields; its files are rebuilt."""
    history = m.ModelMessagesTypeAdapter.validate_python(wire)
    return [type(part).__name__ for message in history for part in message.parts]


def find_files_in_results(wire):
    """Return the parts of tool results that the package treats as files."""
    history = m.ModelMessagesTypeAdapter.validate_json(json.dumps(wire))
    parts = [part for message in history for part in message.parts if isinstance(part, m.ToolReturnPart)]
    return [type(file).__name__ for part in parts for file in part.files]


def generate(value):
    """Return random histories as JSON."""
    histories = [
        History(random.Random(seed)).generate() for seed in range(value["first"], value["first"] + value["count"])
    ]
    return [json.loads(m.ModelMessagesTypeAdapter.dump_json(history)) for history in histories]


class History:
    """A random history, made of every part that a message may contain."""

    def __init__(self, chance):
        self.chance = chance
        self.calls = []

    def generate(self):
        return [
            self.request() if self.chance.random() < 0.5 else self.response() for _ in range(self.chance.randint(1, 6))
        ]

    def one_of(self, *choices):
        return self.chance.choice(choices)

    def text(self):
        return self.chance.choice(TEXTS)

    def when(self):
        zone = self.one_of(UTC, UTC, UTC, timezone(timedelta(hours=2)))
        return (NOON + timedelta(microseconds=self.one_of(0, 1, self.chance.randint(0, 10**12)))).astimezone(zone)

    def details(self):
        return self.one_of(None, None, {}, {"dragon": [1, {"x": None}], "ä": 1.5})

    def origin(self):
        return self.one_of({}, {"id": "item_1", "provider_name": "openai", "provider_details": self.details()})

    # --- files -----------------------------------------------------------------------------------------------------

    def binary(self, *types):
        kinds = types or ("image/png", "audio/wav", "video/mp4", "application/pdf", "text/plain", "application/x-odd")
        data = self.one_of(b"", b"abc", b"\xff\xfe\xfb\xef?>", bytes(range(256)))
        fields = self.one_of({}, {"identifier": "report"}, {"vendor_metadata": {"detail": "high"}})
        return m.BinaryContent(data, media_type=self.chance.choice(kinds), **fields)

    def address(self):
        fields = self.one_of({}, {"force_download": True}, {"force_download": "allow-local"}, {"media_type": "x/y"})
        metadata = self.one_of({}, {"identifier": "picture", "vendor_metadata": {"detail": "low"}})
        cls, ending = self.one_of((m.ImageUrl, "png"), (m.AudioUrl, "mp3"), (m.VideoUrl, "mp4"), (m.DocumentUrl, "pdf"))
        return cls(self.one_of(f"https://example.com/a.{ending}", "https://example.com/a"), **fields, **metadata)

    def upload(self):
        return m.UploadedFile(self.one_of("file-1", "s3://bucket/a.png"), self.one_of("openai", "bedrock"))

    def file(self):
        return self.chance.choice([self.binary, self.address, self.upload])()

    # --- requests --------------------------------------------------------------------------------------------------

    def request(self):
        makers = [self.system, self.prompt, self.prompt, self.result, self.result, self.feedback, self.record]
        parts = [self.chance.choice(makers)() for _ in range(self.one_of(0, 1, 1, 2, 3, 5))]
        return m.ModelRequest(
            parts,
            timestamp=self.one_of(None, self.when()),
            instructions=self.one_of(None, None, "Be brief.", "Be brief.", "Be kind."),
            run_id=self.one_of(None, "run_1"),
            conversation_id=self.one_of(None, "conversation_1"),
            metadata=self.one_of(None, None, {}, {"tenant": "a"}),
            state=self.one_of("complete", "complete", "interrupted"),
        )

    def system(self):
        fields = self.one_of({}, {"dynamic_ref": "f"}, {"context_id": "c", "metadata": {"x": 1}}, {"scope": "request"})
        return m.SystemPromptPart(self.text(), timestamp=self.when(), **fields)

    def prompt(self):
        if self.chance.random() < 0.4:
            return m.UserPromptPart(self.text(), timestamp=self.when())
        items = [self.item() for _ in range(self.one_of(0, 1, 1, 2, 4))]
        return m.UserPromptPart(items, timestamp=self.when())

    def item(self):
        return self.chance.choice(
            [self.text, self.text, self.text_content, self.json_content, self.file, self.file, self.mark]
        )()

    def text_content(self):
        return m.TextContent(self.text(), metadata=self.one_of(None, {"x": 1}, "y"))

    def json_content(self):
        return m.StructuredContent(
            self.one_of({"a": 1}, [1, 2]), **self.one_of({}, {"tag": "ui", "description": "Now:"})
        )

    def mark(self):
        return m.CachePoint(ttl=self.one_of("5m", "1h"))

    def result(self):
        name, call_id = self.chance.choice(self.calls) if self.calls and self.chance.random() < 0.8 else ("f", "call_0")
        content = self.chance.choice([self.value, self.value, self.file, self.content_list])()
        fields = self.one_of({}, {"metadata": {"x": 1}}, {"metadata": "y"}, {"tool_kind": "app.kind"})
        outcome = self.one_of("success", "success", "failed", "denied", "interrupted", "retried")
        if outcome == "retried":
            fields["retry"] = self.one_of(None, m.RetryInfo(cause="model_retry", attempt=1, max_retries=2))
        return m.ToolReturnPart(name, content, call_id, timestamp=self.when(), outcome=outcome, **fields)

    def value(self):
        return self.chance.choice(VALUES)

    def content_list(self):
        return [self.chance.choice([self.file, self.text, self.value])() for _ in range(self.one_of(1, 2, 3))]

    def feedback(self):
        errors = [{"type": "missing", "loc": ["a"], "msg": "Field required", "input": {"b": 1}}]
        content = self.one_of(self.text(), errors)
        when = self.when()
        return self.one_of(
            m.RetryFeedbackPart(content, retry=m.RetryInfo(cause="validation_error"), timestamp=when),
            m.RetryPromptPart(content, timestamp=when, tool_call_id="call_0"),
            m.RetryPromptPart(content, tool_name="f", tool_call_id="call_0", timestamp=when),
            m.CompactionPart(self.one_of(None, self.text()), metadata=self.one_of(None, {"x": 1})),
            m.SpeechPart(speaker="user", transcript=self.one_of(None, self.text()), audio=self.audio()),
        )

    def audio(self):
        return self.one_of(None, self.binary("audio/wav"))

    def record(self):
        source = m.AgentInstructionSource()
        return self.one_of(
            m.ToolAvailabilityDeltaPart(tools_added=["f"], tool_call_id=self.one_of(None, "call_0")),
            m.CapabilityLoadDeltaPart(loaded=["search"]),
            m.ModelSettingsDeltaPart(settings={"thinking": "high"}),
            m.InstructionDeltaPart(id=m.InstructionId(source, name="n"), content=self.one_of(None, self.text())),
            m.InstructionBaselinePart(instructions=[m.InstructionPart(self.text(), dynamic=True)]),
        )

    # --- responses -------------------------------------------------------------------------------------------------

    def response(self):
        makers = [
            self.text_part,
            self.text_part,
            self.thinking,
            self.call,
            self.call,
            self.native_call,
            self.model_output,
        ]
        parts = [self.chance.choice(makers)() for _ in range(self.one_of(0, 1, 1, 2, 4))]
        return m.ModelResponse(
            parts,
            usage=self.usage(),
            model_name=self.one_of(None, "gpt-5.6", "claude-sonnet-4-6"),
            model_id=self.one_of(None, "openai:gpt-5.6"),
            timestamp=self.when(),
            provider_name=self.one_of(None, "openai", "anthropic"),
            provider_url=self.one_of(None, "https://api.example.com/v1"),
            canonical_system=self.one_of(None, "openai"),
            provider_details=self.details(),
            provider_response_id=self.one_of(None, "resp_1"),
            finish_reason=self.one_of(None, "stop", "length", "content_filter", "tool_call", "error"),
            run_id=self.one_of(None, "run_1"),
            conversation_id=self.one_of(None, "conversation_1"),
            metadata=self.one_of(None, {}, {"tenant": "a"}),
            workspace_ref=self.one_of(None, m.WorkspaceRef(provider="local", id="w")),
            failed_attempts=self.one_of(None, [self.attempt()]),
            state=self.one_of("complete", "complete", "incomplete", "suspended", "interrupted"),
        )

    def attempt(self):
        fields = {"outcome": "error", "error": "busy", "timestamp": self.when(), "duration": timedelta(seconds=1.5)}
        return m.ModelRequestAttempt(model_name="gpt-5", usage=RequestUsage(input_tokens=1), **fields)

    def usage(self):
        count = self.chance.randint(0, 10**6)
        return self.one_of(
            RequestUsage(),
            RequestUsage(input_tokens=count, output_tokens=7, cost=Decimal("0.00125")),
            RequestUsage(input_tokens=900, cache_read_tokens=500, cache_write_tokens=100, cache_write_1h_tokens=40),
            RequestUsage(output_tokens=70, output_reasoning_tokens=50, details={"reasoning_tokens": 50}),
            RequestUsage(input_audio_tokens=9, cache_audio_read_tokens=4, audio_seconds=1.5, output_audio_tokens=3),
            RequestUsage(unmeasured_requests=1),
            RequestUsage(input_tokens=3, cache_read_tokens=5, some_new_count=4),
        )

    def text_part(self):
        source = m.WebCitationSource("https://example.com", title="t", excerpts=["e"])
        citation = m.Citation([source], anchor=m.ContentCitationAnchor(start=0, end=1))
        return m.TextPart(self.text(), **self.origin(), citations=self.one_of(None, [citation]))

    def thinking(self):
        return self.one_of(
            m.ThinkingPart(self.text()),
            m.ThinkingPart(self.text(), signature="sig", provider_name="anthropic"),
            m.ThinkingPart("", id="redacted_thinking", signature="blob", provider_name="anthropic"),
            m.ThinkingPart(self.text(), id="rs_1", signature="enc", provider_name="openai", provider_details={"n": 1}),
        )

    def call(self):
        call_id = f"call_{self.chance.randint(0, 5)}"
        args = self.one_of(
            None, {}, {"path": "a", "n": [1]}, '{"path": "a",  "n": 1}', "", '{"cut": "of', "[1]", "nonsense"
        )
        fields = self.one_of({}, {"tool_kind": "app.kind"}, {"id": "fc_1", "provider_name": "openai"})
        self.calls.append(("f", call_id))
        return m.ToolCallPart("f", args, call_id, **fields)

    def native_call(self):
        return self.one_of(
            m.NativeToolCallPart("web_search", {"query": "x"}, "srv_1", provider_name="anthropic"),
            m.NativeToolReturnPart("web_search", self.one_of("r", {"r": [1]}), "srv_1", timestamp=self.when()),
            m.NativeToolReturnPart("run", [self.binary("image/png")], "srv_2", timestamp=self.when()),
        )

    def model_output(self):
        stamp = m.SpeechTimestamp(text="a", start_ms=0, duration_ms=5)
        return self.one_of(
            m.FilePart(self.binary("image/png"), **self.origin()),
            m.CompactionPart(self.one_of(None, self.text()), provider_name="anthropic"),
            m.SpeechPart(speaker="assistant", transcript=self.text(), audio=self.audio(), timestamps=[stamp]),
            m.SpeechPart(speaker="assistant", audio=self.binary("audio/wav"), interrupted_at_ms=3),
        )


def runs(_):
    """Return histories of agents, with a model that returns fixed answers."""
    return [
        json.loads(run.all_messages_json())
        for run in (run_with_tools(), run_with_output(), run_with_files(), run_twice())
    ]


def make_model(*answers):
    """Return a model with these answers in order."""

    def answer(messages: list[m.ModelMessage], _: AgentInfo) -> m.ModelResponse:
        return answers[sum(isinstance(message, m.ModelResponse) for message in messages)]

    return FunctionModel(answer)


def run_with_tools():
    model = make_model(
        m.ModelResponse([m.ThinkingPart("I have to look."), m.ToolCallPart("look", {"path": "README.md"}, "call_1")]),
        m.ModelResponse([m.ToolCallPart("look", '{"path": 1}', "call_2"), m.ToolCallPart("nothing", {}, "call_3")]),
        m.ModelResponse([m.TextPart("It is Project Foo.")]),
    )
    agent = pydantic_ai.Agent(model, instructions="Be brief.", system_prompt="You read files.")

    @agent.tool_plain
    def look(path: str) -> dict[str, str]:
        return {"text": f"# Project Foo ({path})"}

    return agent.run_sync("What is in README.md?")


def run_with_output():
    model = make_model(
        m.ModelResponse([m.ToolCallPart("final_result", {"wrong": 1}, "call_1")]),
        m.ModelResponse([m.ToolCallPart("final_result", {"response": 42}, "call_2")]),
    )
    return pydantic_ai.Agent(model, output_type=int).run_sync("How many?")


def run_with_files():
    model = make_model(
        m.ModelResponse([m.ToolCallPart("show", {}, "call_1")]), m.ModelResponse([m.TextPart("A picture.")])
    )
    agent = pydantic_ai.Agent(model)

    @agent.tool_plain
    def show() -> list[object]:
        return [
            "Here it is:",
            m.BinaryContent(b"\x89PNG", media_type="image/png"),
            m.ImageUrl("https://example.com/a.png"),
        ]

    return agent.run_sync(["What is this?", m.BinaryContent(b"\x89PNG\xff\xfe", media_type="image/png")])


def run_twice():
    model = make_model(m.ModelResponse([m.TextPart("One.")]), m.ModelResponse([m.TextPart("Two.")]))
    agent = pydantic_ai.Agent(model, instructions="Count.")
    first = agent.run_sync("Begin.")
    return agent.run_sync("Go on.", message_history=first.all_messages())
