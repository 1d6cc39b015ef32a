"""Measure the store, beside other stores on SQLite and beside SQLite itself.

Every store syncs every commit (``synchronous=FULL``). The limit is one insert a commit on a bare table; with several
writers, one thread that commits together what waits. Of a store that is asynchronous, appends are awaited one after
another in an event loop, as an agent does it; "from outside" a loop is entered for each. BENCH_FOLDER names the folder,
and so the disk, to measure on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.arena import Arena
from benchmarks.contestants.store_ground import PER_WRITER, WRITERS
from benchmarks.side_by_side import print_figures

LIMIT = "the limit"
CONTESTANTS = {
    LIMIT: ("store_raw", None),
    "Dragoman": ("store_ours", None),
    "OpenAI Agents": ("store_agents", "openai-agents"),
    "llm": ("store_llm", "llm"),
    "LangGraph": ("store_langgraph", "langgraph"),
}
OPERATIONS = {
    "append 10": "a durable append to a session of 10 messages",
    "append 1000": "to one of 1,000",
    "append 20000": "to one of 20,000",
    "append 100000": "to one of 100,000",
    "append from outside": "to one of 10, from outside",
    "last 50": "reading the last 50 of 20,000 messages",
    "fork": "a fork of a session of 100,000 messages",
}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many turns each contestant has")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long a turn takes")
    parser.add_argument("--only", default="", help="measure only contestants whose names contain this, and the limit")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    console = Console()
    chosen = {
        name: contestant
        for name, contestant in CONTESTANTS.items()
        if name == LIMIT or options.only.lower() in name.lower()
    }
    console.print("filling the stores")
    arena = Arena(chosen, console)
    figures: dict[str, dict[str, float]] = {}
    try:
        for operation, title in OPERATIONS.items():
            figures[operation] = arena.measure_us(operation, options.rounds, options.seconds)
            print_figures(console, title, figures[operation], LIMIT if LIMIT in figures[operation] else "Dragoman")
        for writers in WRITERS:
            times_us = arena.measure_us(f"writers {writers}", options.rounds, options.seconds)
            figures[f"writers {writers}"] = {name: writers * PER_WRITER / us * 1e6 for name, us in times_us.items()}
            title = f"durable appends a second by {writers} writers"
            print_figures(console, title, figures[f"writers {writers}"], LIMIT, unit="/s")
        table = Table("", "÷ content", title="bytes on disk after 200 turns of 2 × 2 KB", title_justify="left")
        for name, contestant in arena.contestants.items():
            if "size" in contestant.info["able"]:
                figures.setdefault("size", {})[name] = contestant.run_once("size")
                table.add_row(name, f"{figures['size'][name]:.2f}")
        console.print(table)
    finally:
        arena.stop()
    if options.json_to:
        options.json_to.write_text(json.dumps({"figures": figures, **vars(options)}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
