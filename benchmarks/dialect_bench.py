"""Cost of translation, beside other libraries and a limit: requests, a reply, streams.

The limit is msgspec on the same bytes. ``arena`` describes the measurement.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from benchmarks.arena import Arena
from benchmarks.side_by_side import print_figures

LIMIT = "the limit"
CONTESTANTS = {  # title: module, environment; no environment: ours
    LIMIT: ("limit", None),
    "Dragoman": ("ours", None),
    "pydantic-ai": ("pydantic_ai_", "pydantic-ai"),
    "LiteLLM": ("litellm_", "litellm"),
    "llm-rosetta": ("rosetta", "llm-rosetta"),
    "LangChain": ("langchain_", "langchain"),
}
OPERATIONS = {
    "request 8": "OpenAI chat request of 8 messages and 8 tools to an Anthropic request",
    "request 64": "the same with 64 messages",
    "request 256": "the same with 256 messages",
    "reply": "reading an Anthropic reply of four blocks",
    "reply openai": "reading an OpenAI chat reply of a text and two calls",
    "stream anthropic": "reading an Anthropic stream of 200 deltas into events",
    "stream openai": "reading an OpenAI chat stream of 200 deltas into events",
}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how many turns each contestant has")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long a turn takes")
    parser.add_argument("--only", default="", help="measure only contestants whose names contain this, and the limit")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    console = Console()
    chosen = {
        name: contestant
        for name, contestant in CONTESTANTS.items()
        if name == LIMIT or options.only.lower() in name.lower()
    }
    arena = Arena(chosen, console)
    figures: dict[str, dict[str, float]] = {}
    try:
        for operation, title in OPERATIONS.items():
            figures[operation] = arena.measure_us(operation, options.rounds, options.seconds)
            print_figures(console, title, figures[operation], LIMIT)
    finally:
        arena.stop()
    if options.json_to:
        options.json_to.write_text(json.dumps({"microseconds": figures, **vars(options)}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
