"""The specification's example of every entry type, with its ellipses filled in."""

from __future__ import annotations

from typing import Any

EXAMPLES: dict[str, dict[str, Any]] = {
    "user_message": {
        "type": "user_message",
        "content": "List all tables in the model",
        "timestamp": 1234567890.0,
        "turn_id": "turn_1",
    },
    "assistant_message": {
        "type": "assistant_message",
        "content": "Found 5 tables: ...",
        "timestamp": 1234567891.0,
        "turn_id": "turn_1",
    },
    "task": {"type": "task", "content": "List all tables", "timestamp": 1234567890.0, "turn_id": "turn_1"},
    "action": {
        "type": "action",
        "tool": "list_tables",
        "args": {"schema": "public"},
        "timestamp": 1234567890.5,
        "turn_id": "turn_1",
    },
    "observation": {
        "type": "observation",
        "content": {"tables": ["users", "orders", "..."]},
        "timestamp": 1234567891.0,
        "turn_id": "turn_1",
    },
    "error": {
        "type": "error",
        "content": "Connection failed",
        "error_type": "ConnectionError",
        "timestamp": 1234567891.5,
        "turn_id": "turn_1",
    },
    "final": {
        "type": "final",
        "content": "Task completed successfully",
        "timestamp": 1234567892.0,
        "turn_id": "turn_1",
    },
    "synthesis": {
        "type": "synthesis",
        "content": {"...synthesized_data...": True},
        "from_manager": "powerbi-analysis",
        "phase_id": 0,
        "timestamp": 1234567892.0,
        "turn_id": "turn_1",
    },
    "strategic_plan": {
        "type": "strategic_plan",
        "content": {"primary_worker": "powerbi-analysis", "task_type": "analysis", "phases": ["..."]},
        "timestamp": 1234567890.0,
        "turn_id": "turn_1",
    },
    "script_plan": {
        "type": "script_plan",
        "content": {"goal": "Create measures", "steps": ["..."]},
        "timestamp": 1234567890.0,
        "turn_id": "turn_1",
    },
    "delegation": {
        "type": "delegation",
        "worker": "powerbi-analysis",
        "task": "List all tables",
        "timestamp": 1234567890.5,
        "turn_id": "turn_1",
    },
    "global_observation": {
        "type": "global_observation",
        "content": {"...observation_data...": True},
        "from_worker": "schema_worker",
        "summary": "Found 10 tables",
        "timestamp": 1234567891.0,
        "turn_id": "turn_1",
    },
    "director_context": {
        "type": "director_context",
        "content": "...context text...",
        "timestamp": 1234567890.0,
        "turn_id": "turn_1",
    },
}

# The specification names these types without an example.
UNPRINTED_EXAMPLES: dict[str, dict[str, Any]] = {
    "suggested_plan": {"type": "suggested_plan", "content": ["first", "then"], "timestamp": 0},
    "script_instruction": {"type": "script_instruction", "content": "Step 1", "step": 1, "script": True},
    "injected_context": {"type": "injected_context", "content": {"job": 7}},
}

ALL_EXAMPLES: list[dict[str, Any]] = [*EXAMPLES.values(), *UNPRINTED_EXAMPLES.values()]
