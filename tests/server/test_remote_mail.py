"""The mail of a server from another machine: the same loop, over a real socket."""

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


def result(task_id: str = "T-1", **fields: Any) -> Letter:
    given = {"sender_id": "CA", "recipient_id": "ARCH", "timestamp": WHEN, "output": "done", **fields}
    return task_result_letter(task_id=task_id, **given)


async def remote(server: ServerFixture, **key: Any) -> RemoteMail:
    headers = await server.make_key("ada", scopes=("mail",), team_id="ops", **key)
    return RemoteMail(server.base_url, key=headers["Authorization"].removeprefix("Bearer "), wait_s=2)


async def test_remote_letters_are_sent_once_and_iterated(keyed_server: ServerFixture) -> None:
    async with await remote(keyed_server) as mail:
        for number in range(5):
            receipt = await mail.send(result(f"T-{number}", message_id=f"m{number}"))
            assert receipt.is_new
        assert not (await mail.send(result("T-0", message_id="m0"))).is_new
        seen = []
        async with mail.mailbox("ARCH") as mailbox:
            async for delivery in mailbox:
                seen.append(delivery.letter_id)
                if len(seen) == 5:
                    break
        assert seen == [f"m{number}" for number in range(5)]
    states = await keyed_server.state.mail.for_team(team_id="ops").letters()
    assert {one.state for one in states} == {"done"}


async def test_remote_loop_receives_later_letters(keyed_server: ServerFixture) -> None:
    async with await remote(keyed_server) as mail, mail.mailbox("ARCH") as mailbox:
        waiting = asyncio.create_task(mailbox.__anext__())
        await asyncio.sleep(0.1)
        await mail.send(result(message_id="late"))
        assert (await asyncio.wait_for(waiting, 60)).letter_id == "late"


async def test_remote_failure_is_retried_and_lease_renewed(keyed_server: ServerFixture) -> None:
    async with await remote(keyed_server) as mail:
        await mail.send(result(message_id="m1"))

        async def lease_end() -> int:
            def select() -> Any:
                return (yield "SELECT available_at FROM inbox", ())

            ((end,),) = await keyed_server.store._read(select())
            return int(end)

        async def handle() -> None:
            async with mail.mailbox("ARCH", lease_s=3) as mailbox:
                async for _ in mailbox:
                    first = await lease_end()
                    async with asyncio.timeout(60):
                        while await lease_end() == first:
                            await asyncio.sleep(0.02)
                    assert await mail.receive("ARCH") == []
                    raise RuntimeError("it broke")

        with pytest.raises(RuntimeError, match="it broke"):
            await handle()
        (standing,) = await keyed_server.state.mail.for_team(team_id="ops").letters()
        assert (standing.state, standing.attempts) == ("ready", 1)


async def test_remote_answer_is_decrypted_by_the_requester(keyed_server: ServerFixture) -> None:
    request = needs_input_letter(
        sender_id="CA",
        recipient_id="HUMAN",
        task_id="T-1",
        timestamp=WHEN,
        requested_inputs=[{"id": "api_key", "type": "string", "description": "the key", "sensitive": True}],
    )
    async with await remote(keyed_server) as mail:
        await mail.send(request)
        (asked,) = await mail.receive("HUMAN")
        assert isinstance(asked.letter, NeedsInputLetter)
        await mail.answer(asked, {"api_key": SECRET})
        (answer,) = await mail.receive("CA")
        assert answer.letter.payload.result.inputs == {"api_key": "***"}
        assert (await answer.decrypt()).payload.result.inputs == {"api_key": SECRET}
        assert await answer.ack()
        assert not await answer.ack()


async def test_server_rejection_raises_with_its_code(keyed_server: ServerFixture) -> None:
    async with await remote(keyed_server) as mail:
        await mail.send(result(message_id="m1"))
        with pytest.raises(ConflictError) as conflict:
            await mail.send(result(message_id="m1", output="other"))
        assert conflict.value.code == "letter_conflict"
        (held,) = await mail.receive("ARCH")
        held.lease = "another"
        with pytest.raises(ConflictError) as lost:
            await held.ack()
        assert lost.value.code == "lease_lost"
        missing = RemoteDelivery(mail, "ARCH", {**said(held), "letter_id": "nothing"})
        with pytest.raises(UnknownLetterError):
            await missing.ack()
        with pytest.raises(LetterError):
            await mail.send({"type": "done"})
    async with RemoteMail(keyed_server.base_url, key="ak_live_wrong") as stranger:
        with pytest.raises(TransportError) as refused:
            await stranger.receive("ARCH")
        assert refused.value.code == "unauthorized"


def said(held: RemoteDelivery) -> dict[str, Any]:
    return {
        "letter_id": held.letter_id,
        "lease": held.lease,
        "attempts": held.attempts,
        "until": held.until.isoformat(),
        "letter": msgspec.json.decode(write_letter(held.letter)),
    }


async def test_unreachable_server_is_retried_and_then_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_test_server(tmp_path) as server:
        port = int(server.base_url.rpartition(":")[2])
    async with RemoteMail(f"http://127.0.0.1:{port}") as mail:
        with monkeypatch.context() as patch:
            patch.setattr("dragoman.mail.remote._MAX_ATTEMPTS", 100)  # however long the server takes to start
            sending = asyncio.create_task(mail.send(result(message_id="m1")))
            await asyncio.sleep(0.3)
            async with run_test_server(tmp_path, port=port):
                assert (await asyncio.wait_for(sending, 60)).is_new
        with pytest.raises(TransportError) as gone:
            await mail.send(result(message_id="m2"))
        assert gone.value.code == "transport_failed"
