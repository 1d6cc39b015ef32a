"""Tests of HEIC, audio, and URLs that a storage signs with its own key."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from dragoman.message import AudioBlock
from tests.attachments.samples import HEIC, VALID_FILES, png
from tests.attachments.supabase_server import KEY, SupabaseServer
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import RUNS, SSE, post_run, run_input, user

MP3 = VALID_FILES["audio/mpeg"]


async def upload_file(server: ServerFixture, data: bytes, declared: str, name: str) -> dict[str, Any]:
    form = aiohttp.FormData({"threadId": "t"})
    form.add_field("file", data, filename=name, content_type=declared)
    async with server.client.post("/api/v1/agent/attachments", data=form) as response:
        body: dict[str, Any] = await response.json()
        assert response.status == 200, body
        return body


def message_with_media(url: str, kind: str = "image", mime_type: str | None = None) -> dict[str, Any]:
    source = {"type": "url", "value": url, **({"mimeType": mime_type} if mime_type else {})}
    return user([{"type": "text", "text": "What is it?"}, {"type": kind, "source": source}])


def set_capabilities(server: ServerFixture, **capabilities: Any) -> None:
    """Change the capabilities of the default model."""
    registry = server.agent.services.registry
    model = registry.find(server.agent.services.default_model or "")
    assert model is not None
    registry.catalog = registry.catalog.overlay({"models": {model.id: capabilities}})


@asynccontextmanager
async def run_with_supabase(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ServerFixture, SupabaseServer]]:
    """Run a chat server with a storage that signs with its own key."""
    storage = SupabaseServer()
    storage.sign_with_own_key()
    runner = await storage.start()
    monkeypatch.setenv("SUPABASE_SERVICE_ROLE_KEY", KEY)
    monkeypatch.setenv("SUPABASE_JWT_SECRET", "the-secret-of-the-project-which-signs-no-url")
    try:
        url = f"supabase://{storage.url}/agent-files?scheme=http"
        async with run_test_server(folder, attachments=url) as server:
            yield server, storage
    finally:
        await runner.cleanup()


async def test_run_accepts_url_signed_by_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_with_supabase(tmp_path, monkeypatch) as (server, storage):
        server.fake.reply("A dot.")
        file = await upload_file(server, png(), "image/png", "dot.png")
        assert file["url"].startswith(f"http://{storage.url}/storage/v1/object/sign/agent-files/")
        assert (await post_run(server, run_input(message_with_media(file["url"], mime_type="image/png"))))[-1][
            "type"
        ] == "RUN_FINISHED"
        (part,) = [part for part in server.fake.bodies[0]["messages"][0]["content"] if part["type"] == "image"]
        assert base64.b64decode(part["source"]["data"]) == png()
        changed = file["url"][:-4] + "AAAA"
        async with server.client.post(RUNS, json=run_input(message_with_media(changed)), headers=SSE) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, "bad_signature")


async def test_heic_image_is_stored_unchanged_and_sent_as_jpeg(chat_server: ServerFixture) -> None:
    pytest.importorskip("pi_heif")
    chat_server.fake.reply("A square.")
    file = await upload_file(chat_server, HEIC, "image/heif", "IMG_0001.HEIC")
    assert (file["mime_type"], file["path"].rpartition(".")[2], file["name"]) == ("image/heic", "heic", "IMG_0001.HEIC")
    await post_run(chat_server, run_input(message_with_media(file["url"], mime_type="image/heic"), threadId="t"))
    row, _ = await chat_server.store.read("t")
    assert [attachment.mime_type for attachment in row.message.metadata.attachments] == ["image/heic"]
    (part,) = [
        attachment
        for attachment in chat_server.fake.bodies[0]["messages"][0]["content"]
        if attachment["type"] == "image"
    ]
    assert part["source"]["media_type"] == "image/jpeg"
    assert base64.b64decode(part["source"]["data"]).startswith(b"\xff\xd8\xff")
    async with chat_server.client.get(file["url"]) as response:
        assert (response.status, await response.read()) == (200, HEIC)


@pytest.mark.parametrize("form", ["uploaded", "in the message"])
async def test_audio_reaches_model_with_audio_support(tmp_path: Path, form: str) -> None:
    async with run_test_server(tmp_path, "gemini") as server:
        set_capabilities(server, supports_audio=True)
        server.fake.reply("A beep.")
        if form == "uploaded":
            message = message_with_media(
                (await upload_file(server, MP3, "audio/mp3", "note.mp3"))["url"], "audio", "audio/mp3"
            )
        else:
            source = {"type": "data", "value": base64.b64encode(MP3).decode(), "mimeType": "audio/mpeg"}
            message = user([{"type": "audio", "source": source}])
        assert (await post_run(server, run_input(message, threadId="t")))[-1]["type"] == "RUN_FINISHED"
        row, _ = await server.store.read("t")
        assert isinstance(row.message.content[-1], AudioBlock)
        assert [attachment.mime_type for attachment in row.message.metadata.attachments] == ["audio/mpeg"]
        (part,) = [part for part in server.fake.bodies[0]["contents"][0]["parts"] if "inlineData" in part]
        assert part["inlineData"]["mimeType"] == "audio/mpeg"
        assert base64.b64decode(part["inlineData"]["data"]) == MP3


async def test_audio_without_model_support_is_rejected_or_replaced(chat_server: ServerFixture) -> None:
    file = await upload_file(chat_server, MP3, "audio/mpeg", "note.mp3")
    body = run_input(message_with_media(file["url"], "audio"), threadId="t")
    async with chat_server.client.post(RUNS, json=body, headers=SSE) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (422, "routing_failed")
    assert "no_audio_support" in error["message"]
    assert chat_server.fake.received == []
    agent = chat_server.agent
    agent.config = msgspec.structs.replace(agent.config, capability_policy="placeholder")
    chat_server.fake.reply("I cannot hear it.")
    await post_run(chat_server, {**body, "runId": "again"})
    texts = [part.get("text") for part in chat_server.fake.bodies[0]["messages"][0]["content"]]
    assert texts == ["What is it?", "[audio (audio/mpeg)]"]


async def test_unsupported_heic_is_rejected_without_extra(
    chat_server: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.attachments.attachments.jpeg_from_heic", lambda _: None)
    set_capabilities(chat_server, accepted_image_media_types=["image/png"])
    file = await upload_file(chat_server, HEIC, "image/heic", "x.heic")
    async with chat_server.client.post(RUNS, json=run_input(message_with_media(file["url"])), headers=SSE) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (422, "routing_failed")
    assert "no_vision_support" in error["message"]
