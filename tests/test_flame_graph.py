"""Tests of the flame graph of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dragoman
from scripts.flame_graph import draw, make_tree, name_function


def test_width_of_a_box_is_its_share_of_the_samples() -> None:
    stacks = Counter({("main", "(runners) Runner.run", "a", "b"): 3, ("main", "(runners) Runner.run", "c <x>"): 1})
    text = draw(make_tree(stacks), "A run")
    assert "<title>a: 75.0 %</title>" in text
    assert "<title>c &lt;x&gt;: 25.0 %</title>" in text
    assert "Runner.run" not in text


def test_function_is_named_by_its_module_or_library() -> None:
    own = f"{Path(dragoman.__file__).parent}/turn/turn.py"
    assert name_function(own, "run.<locals>.inner") == "turn/turn run.inner"
    assert name_function("/x/site-packages/uvicorn/server.py", "serve") == "(uvicorn) serve"
    assert name_function("/usr/lib/python3.11/asyncio/tasks.py", "wait") == "(tasks) wait"
