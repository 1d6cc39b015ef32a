"""Tests of the framework's public names: examples, builders, memories, presets and filters."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from typing import Any

import pytest

from dragoman import agent_framework, entries
from dragoman.agent_framework import (
    Action,
    DefaultHistoryFilter,
    DragomanMessageStore,
    FinalResponse,
    HierarchicalMessageStoreMemory,
    HierarchicalSharedMemory,
    InMemoryMemory,
    ManagerHistoryFilter,
    MessageStoreMemory,
    OrchestratorHistoryFilter,
    SharedInMemoryMemory,
    constants,
    describe_preset,
    forget_namespace,
    get_memory_preset,
    list_memory_presets,
)
from dragoman.agent_framework.utils import message_builder
from dragoman.errors import FormatError, StoreUnusableError
from tests.agent_framework.database import EXAMPLES, insert, open_database, read_example, run_code

# --- the examples of the specification -------------------------------------------------------------------------------


def test_constants_have_values_of_example() -> None:
    module = run_code(read_example("constants"))
    printed = re.findall(r'^ +([A-Z_]+), +# "(\w+)"$', (EXAMPLES / "constants.txt").read_text("utf-8"), re.MULTILINE)
    assert len(printed) == 15
    assert [(name, getattr(module, name)) for name, _ in printed] == printed


def test_builders_return_messages_of_example() -> None:
    module = run_code(read_example("builders"))
    assert module.user_msg == {
        "type": "user_message",
        "content": "List all tables",
        "timestamp": 1234567890.0,
        "turn_id": "turn_1",
    }
    assert module.action_msg == {
        "type": "action",
        "tool": "list_tables",
        "args": {"schema": "public"},
        "timestamp": 1234567890.5,
        "turn_id": "turn_1",
    }
    assert module.delegation_msg == {
        "type": "delegation",
        "worker": "powerbi-analysis",
        "task": "List all tables",
        "timestamp": 1234567890.5,
        "turn_id": "turn_1",
    }


class Planner:
    """A synchronous planner: it delegates the task to a worker, then responds with the result."""

    def __init__(self) -> None:
        self.histories: list[list[str]] = []

    def plan(self, task: str, history: list[dict[str, Any]]) -> Any:
        self.histories.append([entry["type"] for entry in history])
        results = [entry["content"] for entry in history if entry["type"] == "observation"]
        if not results:
            return Action("schema", {"task": task})
        return FinalResponse("display_message", {"tables": results[0]}, f"Found {len(results[0])} tables")


async def list_tables(task: str) -> list[str]:
    assert task == "List all tables"
    return ["users", "orders"]


def test_database_store_example_runs_with_changed_imports() -> None:
    connection = open_database()
    insert(connection, "job_123", None, message_builder.create_user_message("List all tables", 1.0, "turn_1"))
    insert(connection, "job_123", "orchestrator", message_builder.create_task_entry("An earlier task", 2.0, "turn_1"))
    insert(connection, "job_123", "orchestrator", message_builder.create_action_entry("list_tables", {}, 3.0, "turn_1"))
    insert(connection, "job_123", None, message_builder.create_global_observation_entry("seen", "w", timestamp=2.5))
    insert(connection, "job_124", None, message_builder.create_user_message("Another job", 1.5))
    variables = {"planner": Planner(), "workers": {"schema": list_tables}, "policies": {}}
    module = run_code(read_example("database_store"), db_connection=connection, **variables)
    assert [(entry["type"], entry["timestamp"]) for entry in module.memory.get_history()] == [
        ("user_message", 1.0),
        ("task", 2.0),
        ("global_observation", 2.5),
        ("action", 3.0),
    ]
    assert module.memory.get_history()[0] == {
        "type": "user_message",
        "content": "List all tables",
        "timestamp": 1.0,
        "turn_id": "turn_1",
    }
    result = asyncio.run(module.agent.run("List all tables"))
    assert result == {
        "operation": "display_message",
        "payload": {"tables": ["users", "orders"]},
        "human_readable_summary": "Found 2 tables",
    }
    first, second = module.planner.histories
    assert first == ["user_message", "task", "global_observation", "action", "task"], "the memory reads the store"
    assert second == [*first, "delegation", "observation", "global_observation"], (
        "the memory contains the entries of the run"
    )
    connection.close()


def test_import_of_framework_agent_explains_its_location() -> None:
    with pytest.raises(ImportError, match="import it from agent_framework and pass it a memory"):
        run_code("from dragoman.agent_framework import Agent")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        run_code("from dragoman.agent_framework import Nothing")


def test_public_names_exist_and_are_sorted() -> None:
    for module in (agent_framework, constants, message_builder):
        assert sorted(module.__all__) == module.__all__
        assert all(hasattr(module, name) for name in module.__all__)
    assert constants.CONVERSATION_TYPES == ["user_message", "assistant_message"], "a list, as in the framework"
    assert {name for name in dir(entries) if name.startswith("create_")} <= set(message_builder.__all__)


# --- builders --------------------------------------------------------------------------------------------------------


def test_entry_without_timestamp_gets_current_time() -> None:
    before = time.time()
    entry = message_builder.create_error_entry("x", turn_id="turn_1")
    assert before <= entry["timestamp"] <= time.time()
    assert list(entry) == ["type", "content", "timestamp", "turn_id"]
    assert message_builder.create_error_entry("x", timestamp=0)["timestamp"] == 0
    assert message_builder.create_error_entry("x", "T", 0.0)["timestamp"] == 0.0
    with pytest.raises(FormatError, match="tool: a text, not ''"):
        message_builder.create_action_entry("", {})


def test_type_info_lists_builder_parameters() -> None:
    assert list(message_builder.AVAILABLE_MESSAGE_TYPES) == list(entries.BUILDERS)
    info = message_builder.get_message_type_info("action")
    assert info is not None
    assert info["builder"] is message_builder.create_action_entry
    assert (info["required_fields"], info["optional_fields"]) == (["tool_name", "tool_args"], ["timestamp", "turn_id"])
    plan = message_builder.get_message_type_info("strategic_plan")
    assert plan is not None
    assert (plan["constant"], plan["required_fields"]) == ("strategic_plan", ["plan"])
    assert message_builder.get_message_type_info("thought") is None


def test_job_data_becomes_history_with_every_field() -> None:
    job = {
        "conversation": [
            {"role": "user", "content": "hi", "timestamp": 0, "mood": "calm"},
            {"role": "system", "content": "no"},
            {"role": "assistant", "content": "hello"},
        ],
        "execution_traces": [
            {"type": "delegation", "worker": "w", "task": "t"},
            {"type": "thought", "content": "no"},
        ],
    }
    assert message_builder.prepare_history_from_job_data(job) == [
        {"type": "user_message", "content": "hi", "timestamp": 0, "mood": "calm"},
        {"type": "assistant_message", "content": "hello"},
        {"type": "delegation", "worker": "w", "task": "t"},
    ]
    assert message_builder.prepare_history_from_job_data({}) == []
    with pytest.raises(ValueError, match="message_format must be 'framework'"):
        message_builder.prepare_history_from_job_data({}, "other")


# --- memories --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["message_store", "location", "agent_key"])
def test_memory_requires_store_location_and_key(missing: str) -> None:
    arguments: dict[str, Any] = {"message_store": object(), "location": "job_1", "agent_key": "a"}
    for memory in (MessageStoreMemory, HierarchicalMessageStoreMemory):
        for empty in (None, ""):
            with pytest.raises(ValueError, match=f"needs a {missing}"):
                memory(**{**arguments, missing: empty})


class CountingStore:
    """A store that records which views are requested."""

    def __init__(self) -> None:
        self.requested: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("get_") or name == "get_merged_history":
            raise AttributeError(name)
        self.requested.append(name)
        return lambda *_: []


def test_memory_queries_team_view_only_with_subordinates() -> None:
    store = CountingStore()
    assert HierarchicalMessageStoreMemory(store, "job_1", "a").get_history() == []
    assert store.requested == ["get_conversation_messages", "get_agent_messages", "get_global_messages"]
    HierarchicalMessageStoreMemory(store, "job_1", "a", ["b"]).get_history()
    assert store.requested[3:] == [
        *("get_conversation_messages", "get_agent_messages", "get_team_messages", "get_global_messages"),
    ]


def test_in_memory_memories_are_independent_copies() -> None:
    first, second = InMemoryMemory("a"), InMemoryMemory("a")
    entry = {"type": "task", "content": "x"}
    first.add(entry)
    entry["content"] = "changed"
    first.get_history()[0]["content"] = "changed"
    assert first.get_history() == [{"type": "task", "content": "x"}]
    assert second.get_history() == []


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Any:
    yield request.node.name
    forget_namespace(request.node.name)


def test_agents_of_namespace_share_conversation_and_global_entries(namespace: str) -> None:
    first, second = SharedInMemoryMemory(namespace, "one"), SharedInMemoryMemory(namespace, "two")
    manager = HierarchicalSharedMemory(namespace, "manager", subordinates=["one", "two"])
    first.add_conversation_turn("user", "hi")
    first.add({"type": "task", "content": 1})
    second.add_global({"type": "global_observation", "content": 2})
    second.add({"type": "task", "content": 3})
    manager.add({"type": "delegation", "worker": "one", "task": "4"})
    first.add_conversation_turn("assistant", "bye")
    assert [entry["content"] for entry in first.get_history()] == ["hi", 1, 2, "bye"]
    assert [entry["content"] for entry in second.get_history()] == ["hi", 2, 3, "bye"]
    assert [entry["type"] for entry in manager.get_history()] == [
        *("user_message", "task", "global_observation", "task", "delegation", "assistant_message"),
    ]
    assert first.get_global_updates() == [{"type": "global_observation", "content": 2}]
    assert "timestamp" in first.get_history()[0]
    with pytest.raises(ValueError, match="role must be 'user' or 'assistant'"):
        first.add_conversation_turn("system", "no")
    for arguments in (("", "a"), ("n", "")):
        with pytest.raises(ValueError, match="needs a namespace and an agent_key"):
            SharedInMemoryMemory(*arguments)


def test_concurrent_threads_add_every_entry(namespace: str) -> None:
    def add(number: int) -> None:
        memory = SharedInMemoryMemory(namespace, "a")
        for n in range(200):
            memory.add({"type": "observation", "content": [number, n]})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = SharedInMemoryMemory(namespace, "a").get_history()
    assert sorted(entry["content"] for entry in history) == [[number, n] for number in range(8) for n in range(200)]


# --- presets and filters ---------------------------------------------------------------------------------------------


def test_preset_creates_memory_from_context(monkeypatch: pytest.MonkeyPatch, namespace: str) -> None:
    monkeypatch.delenv("JOB_ID", raising=False)
    assert list_memory_presets() == ["standalone", "worker", "manager"]
    assert all(describe_preset(name) for name in [*list_memory_presets(), "none"])
    standalone = get_memory_preset("standalone", {"agent_name": "My Agent-1"})
    assert isinstance(standalone, InMemoryMemory)
    assert standalone.agent_key == "my_agent_1"
    worker = get_memory_preset("worker", {"agent_key": "Research-Worker", "job_id": namespace})
    worker.add({"type": "task", "content": 1})
    manager = get_memory_preset("manager", {"subordinates": ["research worker"], "JOB_ID": namespace})
    assert [entry["content"] for entry in manager.get_history()] == [1]
    monkeypatch.setenv("JOB_ID", namespace)
    assert [
        entry["content"] for entry in get_memory_preset("worker", {"agent_key": "research_worker"}).get_history()
    ] == [1]
    assert get_memory_preset("worker", {"agent_key": "research_worker", "namespace": "x"}).get_history() == []
    forget_namespace("x")
    with pytest.raises(ValueError, match="there is no memory preset 'boss'; use one of standalone, worker, manager"):
        get_memory_preset("boss")


def test_filters_read_settings_from_context() -> None:
    history = [{"type": "user_message", "content": n} for n in range(10)]
    history += [{"type": "synthesis", "content": n, "from_manager": "m", "phase_id": n} for n in range(2)]
    assert DefaultHistoryFilter().filter_for_prompt(history, {}) == history
    orchestrator = OrchestratorHistoryFilter()
    assert orchestrator.filter_for_prompt(history) == history[2:10]
    assert orchestrator.filter_for_prompt(history, {"max_conversation_turns": 1}) == history[9:10]
    manager = ManagerHistoryFilter()
    assert manager.filter_for_prompt(history, {"phase_id": 1}) == history[10:11]
    assert manager.filter_for_prompt(history, {"phase_id": 1, "previous_phase_id": 1}) == history[11:]
    assert manager.filter_for_prompt(history, {}) == []


# --- forks and validation --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_store_opened_before_fork_raises_in_child() -> None:
    with DragomanMessageStore("memory:") as store:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.get_global_messages("job_1")
            except StoreUnusableError as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.get_global_messages("job_1") == []


def test_memories_reject_invalid_entries() -> None:
    shared = SharedInMemoryMemory("refusals", "a")
    for memory in (InMemoryMemory(), shared, HierarchicalSharedMemory("refusals", "b", ["a"])):
        with pytest.raises(FormatError, match="unknown type 'nope'"):
            memory.add({"type": "nope"})
        assert memory.get_history() == []
    with pytest.raises(FormatError):
        shared.add_global({"type": "nope"})
    forget_namespace("refusals")
