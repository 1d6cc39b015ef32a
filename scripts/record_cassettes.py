"""Record the cassettes: send the requests of ``tests/recordings.py`` to real servers and store the responses.

    llama.cpp    the real server, around the model of scripts/local_model.py: OpenAI chat and Responses, Anthropic
    aimock       a server for tests that speaks the wires whose own servers run nowhere but at their providers

``make cassettes`` installs both, records everything anew and writes ``tests/cassettes``. ``--golden`` writes
``tests/golden`` from the cassettes that are there; it is never done by itself, because a golden file that follows the
code proves nothing. Review both like code.

What differs from one recording to the next and means nothing is replaced before anybody reads it: see ``STEADY``. Of
the headers only ``HEADERS`` are kept, and no address. Invariant: a cassette contains only a request that was
sent and the response of a server.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from dragoman import dialects
from tests import recordings
from tests.recordings import Cassette, CassetteRequest, CassetteResponse

ROOT: Final = Path(__file__).resolve().parent.parent
HEADERS: Final = ("content-type", "retry-after")

# --- servers of the dialects ------------------------------------------------------------------------------------------


class Endpoint(msgspec.Struct, frozen=True):
    """The server and the paths of a dialect."""

    server: str
    reply_path: str
    stream_path: str
    shows_thinking: bool = True  # aimock returns reasoning in the wrong form for some dialects


ENDPOINTS: Final = {
    "anthropic": Endpoint("llama.cpp", "/v1/messages", "/v1/messages"),
    "bedrock_converse": Endpoint("aimock", "/model/tiny/converse", "/model/tiny/converse-stream"),
    "cohere": Endpoint("aimock", "/v2/chat", "/v2/chat", shows_thinking=False),
    "gemini": Endpoint(
        "aimock", "/v1beta/models/tiny:generateContent", "/v1beta/models/tiny:streamGenerateContent?alt=sse"
    ),
    "ollama": Endpoint("aimock", "/api/chat", "/api/chat", shows_thinking=False),
    "openai_chat": Endpoint("llama.cpp", "/v1/chat/completions", "/v1/chat/completions"),
    "openai_responses": Endpoint("llama.cpp", "/v1/responses", "/v1/responses"),
}

WORDS: Final = "It is the readme of Project Foo – très bref! 😀"
COUNTS: Final = {
    "input_tokens": 40,
    "output_tokens": 12,
    "promptTokenCount": 40,
    "candidatesTokenCount": 12,
    "totalTokenCount": 52,
}
CALL: Final = {"id": "theirs-1", "name": "read_file", "arguments": '{"path": "README.md"}'}
RATE_LIMIT_ERROR: Final = {"message": "Too many requests.", "type": "rate_limit_error"}
# The replies of aimock: the first match applies.
AIMOCK: Final = [
    {"match": {"userMessage": "Repeat"}, "response": {"error": RATE_LIMIT_ERROR, "status": 429, "retryAfter": 7}},
    {"match": {"hasToolResult": True}, "response": {"id": "answer-3", "content": WORDS, "usage": COUNTS}},
    {"match": {"userMessage": "Summarize"}, "response": {"id": "answer-2", "toolCalls": [CALL], "usage": COUNTS}},
    {
        "match": {"userMessage": "think"},
        "response": {"id": "answer-4", "content": WORDS, "reasoning": "The user wants it short.", "usage": COUNTS},
    },
    {"match": {}, "response": {"id": "answer-1", "content": WORDS, "usage": COUNTS}},
]


# --- servers ---------------------------------------------------------------------------------------------------------


class Server(msgspec.Struct, frozen=True):
    """A running server, and its name on cassettes."""

    title: str
    address: str


@contextlib.contextmanager
def llama_cpp(folder: Path) -> Iterator[Server]:
    """Run the real llama.cpp with our model."""
    python = folder / "venv" / "bin" / "python"
    version_script = "import importlib.metadata as m; print(m.version('xllamacpp'))"
    version = subprocess.run([python, "-c", version_script], check=True, capture_output=True, text=True).stdout.strip()
    with (
        tempfile.TemporaryDirectory() as temporary,
        (Path(temporary) / "log").open("w") as log,
        _start_process([python, "-m", "scripts.local_model", temporary], log) as process,
    ):
        yield Server(f"llama.cpp (xllamacpp {version})", _address(process))


@contextlib.contextmanager
def aimock(folder: Path) -> Iterator[Server]:
    """Run the test server with our replies."""
    package = folder / "node_modules" / "@copilotkit" / "aimock"
    version = json.loads((package / "package.json").read_text("utf-8"))["version"]
    with tempfile.TemporaryDirectory() as temporary:
        fixtures = Path(temporary) / "fixtures.json"
        fixtures.write_text(json.dumps({"fixtures": AIMOCK}), "utf-8")
        command = ["node", package / "dist" / "cli.js", "--port", "0", "--chunk-size", "7", "--fixtures", fixtures]
        with _start_process(command, subprocess.STDOUT) as process:
            yield Server(f"aimock {version}", _address(process))


@contextlib.contextmanager
def _start_process(command: list[Any], log: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process that prints its address, and terminate it at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.terminate()


def _address(process: subprocess.Popen[str]) -> str:
    """Return the address that the process prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://[\d.]+:\d+", line):
            return match[0]
    raise SystemExit(f"{process.args!r} ended before it printed its address")


# --- recording -------------------------------------------------------------------------------------------------------


def record(dialect: str, name: str, server: Server) -> None:
    """Send a request, and write the cassette."""
    endpoint = ENDPOINTS[dialect]
    path = endpoint.stream_path if name.endswith(recordings.STREAMED) else endpoint.reply_path
    wire = recordings.make_request(dialect, name)
    response = send_request(f"{dialect}/{name}", server.address, path, wire)
    cassette = Cassette(
        server=server.title, request=CassetteRequest(method="POST", path=path, body=wire), response=response
    )
    file = recordings.CASSETTES / dialect / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(msgspec.to_builtins(cassette), indent=1, ensure_ascii=False) + "\n", "utf-8")


def send_request(seed: str, address: str, path: str, wire: Any) -> CassetteResponse:
    """Send a request, and return the response as stored on a cassette."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("POST", path, json.dumps(wire), {"content-type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    headers = {name: value for name in HEADERS if (value := response.headers[name]) is not None}
    connection.close()
    kind = headers.get("content-type", "")
    if "eventstream" in kind:
        frames = list(parse_frames(data))
        payloads = tuple(frame[1].decode() for frame in frames)
        frame_texts = tuple(base64.b64encode(frame[0]).decode() for frame in frames)
        return CassetteResponse(status=response.status, headers=headers, frames=frame_texts, payloads=payloads)
    text = stabilize(data.decode(), seed)
    if "event-stream" in kind or "ndjson" in kind:
        return CassetteResponse(status=response.status, headers=headers, lines=tuple(text.splitlines(keepends=True)))
    return CassetteResponse(status=response.status, headers=headers, body=json.loads(text))


def parse_frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield each frame of an AWS event stream with its payload: lengths, headers, payload, checksum."""
    while data:
        length, headers_length = struct.unpack(">II", data[:8])
        yield data[:length], data[12 + headers_length : length - 4]
        data = data[length:]


# Values that differ in every recording: ids of 32 characters, times and durations.
STABLE_VALUES: Final = (
    (re.compile(r'"(created|created_at|completed_at)":\d+'), r'"\1":1767225600'),
    (re.compile(r'"created_at":"[^"]+"'), '"created_at":"2026-01-01T00:00:00.000Z"'),
    (re.compile(r'"((?:prompt|predicted)_(?:ms|per_token_ms|per_second))":[\d.e+-]+'), r'"\1":1.5'),
)
ID: Final = re.compile(r"(?<![0-9A-Za-z])[0-9A-Za-z]{32}(?![0-9A-Za-z])")


def stabilize(text: str, seed: str) -> str:
    """Replace values that differ between recordings. Equal ids get equal replacements of the same length."""
    for pattern, replacement in STABLE_VALUES:
        text = pattern.sub(replacement, text)
    ids: dict[str, str] = {}
    return ID.sub(lambda match: ids.setdefault(match[0], _stand_in(seed, len(ids))), text)


def _stand_in(seed: str, number: int) -> str:
    return hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:32]


def record_all(folder: Path) -> None:
    """Record every scene of every dialect, whole and streamed. Calls are recorded before their results."""
    unknown = set(dialects.callable_names()) - set(ENDPOINTS)
    if unknown:
        raise SystemExit(f"no server in ENDPOINTS for: {', '.join(sorted(unknown))}")
    with llama_cpp(folder) as real, aimock(folder) as mock:
        for dialect in dialects.callable_names():
            endpoint = ENDPOINTS[dialect]
            for old in (recordings.CASSETTES / dialect).glob("*.json"):
                old.unlink()
            for scene in recordings.SCENES:
                if scene == "thinking" and not endpoint.shows_thinking:
                    continue
                for name in (scene, scene + recordings.STREAMED):
                    record(dialect, name, real if endpoint.server == "llama.cpp" else mock)
            print(f"{dialect}: {', '.join(recordings.cassette_names(dialect))}")


def write_golden() -> None:
    """Write the golden files from the cassettes."""
    recordings.GOLDEN.mkdir(exist_ok=True)
    for dialect in dialects.callable_names():
        (recordings.GOLDEN / f"{dialect}.json").write_bytes(recordings.golden(dialect))


def main() -> None:
    """Record to ``FOLDER``, where both servers are installed, or write the golden files (``--golden``)."""
    if sys.argv[1:] == ["--golden"]:
        write_golden()
    elif len(sys.argv) == 2:
        record_all(Path(sys.argv[1]))
    else:
        raise SystemExit("usage: python -m scripts.record_cassettes FOLDER | --golden")


if __name__ == "__main__":
    main()
