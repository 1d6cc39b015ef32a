"""The configuration of an agent, as one value.

    Agent(store, tools=[weather], config=AgentConfig(max_steps=10, pause_for_approval=True))

``Agent`` sets ``tools``, ``system_prompt`` and ``options`` from its own parameters. The agent of a delegated task has
the same configuration with other tools and another prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from dragoman.client import Retries, Timeouts
from dragoman.context_window import SUMMARY_ABOVE_TOKENS
from dragoman.exchange import Options
from dragoman.handoff import Describe
from dragoman.handoff import Policy as CapabilityPolicy
from dragoman.local import LocalModel
from dragoman.pricing import PriceTable
from dragoman.routing import Policy
from dragoman.tools import Confirm, ConfirmationPolicy, ToolRegistry
from dragoman.tools.dispatch import CONFIRM_TIMEOUT_S

MAX_STEPS: Final = 25


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an agent."""

    system_prompt: str | None = None
    options: Options = Options()
    tools: ToolRegistry = msgspec.field(default_factory=ToolRegistry)
    agent_key: str = "assistant"  # of the entries that its turns write
    policy: Policy | None = None  # for routing; none: the policy file of the workspace
    confirm: Confirm | None = None  # asked before a tool runs that requires approval
    confirmation_policy: ConfirmationPolicy | None = None
    confirm_timeout_s: float = CONFIRM_TIMEOUT_S
    pause_for_approval: bool = False  # a call that requires approval ends the turn; ``confirm`` is not called
    capability_policy: CapabilityPolicy = "strict"  # for media that the model does not support
    describe_image: Describe | None = None
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    max_steps: int = MAX_STEPS  # calls of the model in one turn
    output_repairs: int = 1  # further calls if an answer does not fit the requested ``output``
    allow_delegation: bool = False  # offer the tool ``delegate``
    summarize: bool = False
    summarize_above_tokens: int = SUMMARY_ABOVE_TOKENS
    stream: bool = True
    gather_s: float = 0.0  # read a stream at most every so many seconds after its first text, to save CPU time
    prompt_caching: bool = True  # mark prompts for providers that cache only what is marked
    record_trace: bool | None = None  # none: only if the agent creates its own bus
    price_table: PriceTable | None = None  # none: the prices of the library
    local_model: LocalModel | None = None
    clock: Callable[[], datetime] | None = None  # none: the clock of the store
