"""LangGraph's SqliteSaver, with a state of messages."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.contestants.store_ground import make_operations
from benchmarks.worker import Operation


class LangGraphStore:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, timeout=60)
        graph = StateGraph(MessagesState)
        graph.add_node("say", lambda state: state)
        graph.add_edge(START, "say")
        graph.add_edge("say", END)
        self._graph = graph.compile(checkpointer=SqliteSaver(self._connection))

    def seed(self, session: str, texts: list[str]) -> None:
        self._graph.update_state(_of(session), {"messages": [AIMessage(said) for said in texts]}, as_node="say")

    def append(self, session: str, content: str) -> None:
        self._graph.update_state(_of(session), {"messages": [AIMessage(content)]}, as_node="say")

    def last(self, session: str, count: int) -> int:
        return len(self._graph.get_state(_of(session)).values["messages"][-count:])

    def close(self) -> None:
        self._connection.close()


def _of(session: str) -> Any:
    return {"configurable": {"thread_id": session}}


def operations() -> dict[str, Operation]:
    return make_operations(LangGraphStore)[1]
