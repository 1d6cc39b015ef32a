"""The back end of a chat: your own endpoint, and the chat API with the web page under /chat.

Run it with: uvicorn fastapi_backend:api
"""

from fastapi import FastAPI
from pydantic import BaseModel

import dragoman

chat = dragoman.server.app("chats.db", model="claude-sonnet-5-5")
api = FastAPI(lifespan=chat.lifespan)
api.mount("/chat", chat)


class Question(BaseModel):
    text: str
    session: str | None = None


class Reply(BaseModel):
    text: str
    session: str


@api.post("/ask")
async def ask(question: Question) -> Reply:
    """Answer a question, in a new session or in an earlier one."""
    answer = await chat.state.agent.ask(question.text, session=question.session)
    return Reply(text=answer.text, session=answer.session_id)
