"""Send a letter from one agent to another one, and receive it."""

import asyncio
from datetime import UTC, datetime

import dragoman
from dragoman.letters import task_result_letter


async def main() -> None:
    async with dragoman.open_store("agents.db") as store:
        mail = dragoman.mail.Mail(store)
        header = {"sender_id": "CA", "recipient_id": "ARCH", "timestamp": datetime.now(UTC)}
        await mail.send(task_result_letter(task_id="TASK-1", output="It is done.", **header))
        for delivery in await mail.receive("ARCH"):
            print(delivery.letter.payload.result.output)


asyncio.run(main())
