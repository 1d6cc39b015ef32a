"""Facts about Dragoman and similar libraries: what an installation contains, what an import costs, what a swap does.

The environments are those of the other benchmarks. An installation is the package with what it requires. The import is
the median processor time of new interpreters, less that of an empty one. For the swap, a chat history in which one of
two parallel tool calls has no result, as after an interruption, is converted to a request of the Messages API, which
rejects a call without a result.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess

from rich.console import Console
from rich.table import Table

from benchmarks.arena import Arena, ensure_python

PEERS = {  # title: environment, distributions, modules that a program imports, contestant
    "Dragoman": (None, ["dragoman"], "dragoman; dragoman.Agent", "ours"),
    "LiteLLM": ("litellm", ["litellm"], "litellm", "litellm_"),
    "LangChain": (
        "langchain",
        ["langchain-anthropic", "langchain-openai"],
        "langchain_anthropic, langchain_openai",
        "langchain_",
    ),
    "pydantic-ai": (
        "pydantic-ai",
        ["pydantic-ai-slim", "anthropic", "openai"],
        "pydantic_ai.models.anthropic, pydantic_ai.models.openai",
        "pydantic_ai_",
    ),
    "llm": ("llm", ["llm"], "llm", None),
}
_INSTALLATION = """
import importlib.metadata as metadata, importlib.util, json, pathlib, re, sys
found, queue = {}, json.loads(sys.argv[1])
while queue:
    name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        continue
    if name not in found:
        files = [file.locate() for file in distribution.files or ()]
        if "editable" in (distribution.read_text("direct_url.json") or ""):
            files += pathlib.Path(importlib.util.find_spec(name).origin).parent.rglob("*")
        found[name] = sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
        queue += [re.match(r"[\\w.-]+", line)[0] for line in distribution.requires or () if "extra ==" not in line]
print(json.dumps([len(found), sum(found.values())]))
"""
_ROUNDS = 9


def main() -> None:
    """Measure, and print one row per library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="how many interpreters are started")
    rounds = parser.parse_args().rounds
    console = Console()
    table = Table("", "packages", "MB", "import, s of processor time", "an interrupted history becomes")
    for title, (environment, distributions, modules, contestant) in PEERS.items():
        python = ensure_python(environment, console)
        packages, size = _count_installation(python, distributions)
        cost_s = _import_s(python, modules, rounds)
        swap = "–" if contestant is None else _swap_result(title, contestant, environment)
        table.add_row(title, str(packages), f"{size / 1e6:.0f}", f"{cost_s:.2f}", swap)
    console.print(table)


def _count_installation(python: str, distributions: list[str]) -> tuple[int, int]:
    output = subprocess.run([python, "-c", _INSTALLATION, json.dumps(distributions)], capture_output=True, check=True)
    packages, size = json.loads(output.stdout)
    return packages, size


def _import_s(python: str, modules: str, rounds: int) -> float:
    pairs = [(_cpu_s(python, f"import {modules}"), _cpu_s(python, "pass")) for _ in range(rounds)]
    return statistics.median(loaded - empty for loaded, empty in pairs)


def _cpu_s(python: str, code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _swap_result(title: str, module: str, environment: str | None) -> str:
    arena = Arena({title: (module, environment)}, Console(quiet=True))
    info = arena.contestants[title].info
    arena.stop()
    return (
        "a valid request" if "interrupted request" in info["able"] else info["unable"].get("interrupted request", "?")
    )


if __name__ == "__main__":
    main()
