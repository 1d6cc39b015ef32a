"""Tests of remote mail: the mailbox loop over a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import ConflictError, LetterError, TransportError, UnknownLetterError
from dragoman.letters import Letter, NeedsInputLetter, needs_input_letter, task_result_letter, write_letter
from dragoman.mail.remote import RemoteDelivery, RemoteMail
from tests.server.conftest import ServerFixture, run_test_server

WHEN = "2026-11-15T12:00:00Z"
SECRET = "tr0ub4dor-and-3-horses"


def make_result(task_id: str = "T-1", **fields: Any) -> Letter:
    values = {"sender_id": "CA", "recipient_id": "ARCH", "timestamp": WHEN, "output": "done", **fields}
    return task_result_letter(task_id=task_id, **values)


async def open_remote_mail(server: ServerFixture, **key: Any) -> RemoteMail:
    headers = await server.make_key("ada", scopes=("mail",), team_id="ops", **key)
    return RemoteMail(server.base_url, key=headers["Authorization"].removeprefix("Bearer "), wait_s=2)


async def test_remote_letters_are_sent_once_and_iterated(keyed_server: ServerFixture) -> None:
    async with await open_remote_mail(keyed_server) as mail:
        for number in range(5):
            receipt = await mail.send(make_result(f"T-{number}", message_id=f"m{number}"))
            assert receipt.is_new
        assert not (await mail.send(make_result("T-0", message_id="m0"))).is_new
        received = []
        async with mail.mailbox("ARCH") as mailbox:
            async for delivery in mailbox:
                received.append(delivery.letter_id)
                if len(received) == 5:
                    break
        assert received == [f"m{number}" for number in range(5)]
    states = await keyed_server.state.mail.for_team(team_id="ops").letters()
    assert {status.state for status in states} == {"done"}


async def test_remote_loop_receives_later_letters(keyed_server: ServerFixture) -> None:
    async with await open_remote_mail(keyed_server) as mail, mail.mailbox("ARCH") as mailbox:
        receiver = asyncio.create_task(mailbox.__anext__())
        await asyncio.sleep(0.1)
        await mail.send(make_result(message_id="late"))
        assert (await asyncio.wait_for(receiver, 60)).letter_id == "late"


async def test_remote_failure_is_retried_and_lease_renewed(keyed_server: ServerFixture) -> None:
    async with await open_remote_mail(keyed_server) as mail:
        await mail.send(make_result(message_id="m1"))

        async def read_lease_end() -> int:
            def select() -> Any:
                return (yield "SELECT available_at FROM inbox", ())

            ((end,),) = await keyed_server.store._read(select())
            return int(end)

        async def handle() -> None:
            async with mail.mailbox("ARCH", lease_s=3) as mailbox:
                async for _ in mailbox:
                    first = await read_lease_end()
                    async with asyncio.timeout(60):
                        while await read_lease_end() == first:
                            await asyncio.sleep(0.02)
                    assert await mail.receive("ARCH") == []
                    raise RuntimeError("it broke")

        with pytest.raises(RuntimeError, match="it broke"):
            await handle()
        (status,) = await keyed_server.state.mail.for_team(team_id="ops").letters()
        assert (status.state, status.attempts) == ("ready", 1)


async def test_remote_answer_is_decrypted_by_the_requester(keyed_server: ServerFixture) -> None:
    request = needs_input_letter(
        sender_id="CA",
        recipient_id="HUMAN",
        task_id="T-1",
        timestamp=WHEN,
        requested_inputs=[{"id": "api_key", "type": "string", "description": "the key", "sensitive": True}],
    )
    async with await open_remote_mail(keyed_server) as mail:
        await mail.send(request)
        (delivery,) = await mail.receive("HUMAN")
        assert isinstance(delivery.letter, NeedsInputLetter)
        await mail.answer(delivery, {"api_key": SECRET})
        (answer,) = await mail.receive("CA")
        assert answer.letter.payload.result.inputs == {"api_key": "***"}
        assert (await answer.decrypt()).payload.result.inputs == {"api_key": SECRET}
        assert await answer.ack()
        assert not await answer.ack()


async def test_server_rejection_raises_with_its_code(keyed_server: ServerFixture) -> None:
    async with await open_remote_mail(keyed_server) as mail:
        await mail.send(make_result(message_id="m1"))
        with pytest.raises(ConflictError) as conflict:
            await mail.send(make_result(message_id="m1", output="other"))
        assert conflict.value.code == "letter_conflict"
        (delivery,) = await mail.receive("ARCH")
        delivery.lease = "another"
        with pytest.raises(ConflictError) as lost:
            await delivery.ack()
        assert lost.value.code == "lease_lost"
        missing = RemoteDelivery(mail, "ARCH", {**delivery_fields(delivery), "letter_id": "nothing"})
        with pytest.raises(UnknownLetterError):
            await missing.ack()
        with pytest.raises(LetterError):
            await mail.send({"type": "done"})
    async with RemoteMail(keyed_server.base_url, key="ak_live_wrong") as unauthorized:
        with pytest.raises(TransportError) as caught:
            await unauthorized.receive("ARCH")
        assert caught.value.code == "unauthorized"


def delivery_fields(delivery: RemoteDelivery) -> dict[str, Any]:
    return {
        "letter_id": delivery.letter_id,
        "lease": delivery.lease,
        "attempts": delivery.attempts,
        "until": delivery.until.isoformat(),
        "letter": msgspec.json.decode(write_letter(delivery.letter)),
    }


async def test_unreachable_server_is_retried_and_then_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_test_server(tmp_path) as server:
        port = int(server.base_url.rpartition(":")[2])
    async with RemoteMail(f"http://127.0.0.1:{port}") as mail:
        with monkeypatch.context() as patch:
            patch.setattr("dragoman.mail.remote._MAX_ATTEMPTS", 100)  # regardless of the start-up time of the server
            sender = asyncio.create_task(mail.send(make_result(message_id="m1")))
            await asyncio.sleep(0.3)
            async with run_test_server(tmp_path, port=port):
                assert (await asyncio.wait_for(sender, 60)).is_new
        with pytest.raises(TransportError) as caught:
            await mail.send(make_result(message_id="m2"))
        assert caught.value.code == "transport_failed"
