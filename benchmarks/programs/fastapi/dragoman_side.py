"""An AG-UI chat back end, mounted in FastAPI."""

from fastapi import FastAPI

import dragoman

chat = dragoman.server.app("chats.db", model="claude-sonnet-4-5")
api = FastAPI(lifespan=chat.lifespan)
api.mount("/chat", chat)
