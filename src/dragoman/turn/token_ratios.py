"""Corrections of token estimates by what providers counted in other sessions.

    ratios = TokenRatios(store)
    await ratios.load(model.id, tools)     one read of the store for each model and process
    ratios.get(model.id)                   the correction for a session that has no usage of the model yet
    ratios.learn(model.id, ratio)          the ratio of the newest prompt, from any session

A family has one set of figures, but providers add prompts of their own and change them. Invariant: a ratio is between
``LOWEST`` and ``HIGHEST``, because the prompt that it comes from may be unlike the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dragoman import tokens
from dragoman.context_window import with_summary
from dragoman.errors import DragomanError
from dragoman.exchange import ToolDefinition
from dragoman.store import Store

LOWEST: Final = 0.7
HIGHEST: Final = 1.5
_MESSAGES: Final = 50  # of the session that is read


class TokenRatios:
    """The newest ratio of each model: tokens that its provider counted, by tokens that were estimated."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_model: dict[str, float] = {}

    def get(self, model_id: str) -> float:
        """Return the ratio of a model; 1 if it is not known."""
        return self._by_model.get(model_id, 1.0)

    def learn(self, model_id: str, ratio: float) -> None:
        """Keep the ratio of a prompt of any session."""
        self._by_model[model_id] = min(HIGHEST, max(LOWEST, ratio))

    async def load(self, model_id: str, tools: Iterable[ToolDefinition]) -> None:
        """Learn from the newest short session in which the model answered, unless the model is known."""
        if model_id in self._by_model:
            return
        self._by_model[model_id] = 1.0
        try:
            session_id = await self._store.costs.find_session(model_id, max_seq=_MESSAGES)
            rows = await self._store.read(session_id, limit=_MESSAGES) if session_id is not None else []
        except DragomanError:  # a session that was deleted meanwhile; an estimate is no reason to fail
            return
        ratio = tokens.find_ratio(model_id, [row.message for row in rows], tools, view=with_summary)
        if ratio is not None:
            self.learn(model_id, ratio)
