"""What another model would need to go on with a thread: how it is spoken to, and the whole history."""

from __future__ import annotations

from dragoman.adapter import Adapter
from dragoman.ids import ToolIds
from dragoman.message import Message
from dragoman.server.refusing import Refusal
from dragoman.server.state import Doors
from dragoman.store import Session, Store


async def model_asked(doors: Doors, session: Session, name: str) -> Adapter:
    """How the model of that name would be spoken to in a session; 422 if there is none."""
    found = doors.agent.registry.find(name)
    if found is None:
        raise Refusal(422, "unknown_model", "No model is called so.")
    return doors.agent.adapter(found, ToolIds(await doors.store.tool_ids(session.id)))


async def history_of(store: Store, session: Session) -> list[Message]:
    """Every message of a session."""
    return [row.message async for row in store.history(session.id)]
