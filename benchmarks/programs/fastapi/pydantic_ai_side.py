"""An AG-UI chat back end in FastAPI."""

from fastapi import FastAPI, Request, Response
from pydantic_ai import Agent
from pydantic_ai.ui.ag_ui import AGUIAdapter

agent = Agent("anthropic:claude-sonnet-4-5")
api = FastAPI()


@api.post("/chat")
async def chat(request: Request) -> Response:
    return await AGUIAdapter.dispatch_request(request, agent=agent)
