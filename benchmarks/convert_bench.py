"""What converting a file costs, beside reading and writing the same file as plain JSON.

The file has conversations with calls and results, as lines that Python's own json wrote. Each conversion runs in a
process of its own, and so does plain JSON: msgspec, and the standard library, decode and encode every line. CPU is
that of all processes together; memory is the most that one of them had. Starting Python is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

CONVERSIONS = (  # from, to; what one writes, a later one reads
    ("openai_chat", "canonical"),
    ("openai_chat", "anthropic"),
    ("canonical", "openai_chat"),
    ("canonical", "anthropic"),
    ("canonical", "envelopes"),
    ("canonical", "entries"),
    ("envelopes", "canonical"),
    ("anthropic", "canonical"),
    ("entries", "canonical"),
)
WORDS = "the agent reads a file and writes what it finds there into another one while nobody looks at it".split()


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=100_000, help="how many in the long file; the short has a tenth"
    )
    parser.add_argument("--processes", type=int, default=0, help="how many work at once; all cores unless given")
    parser.add_argument("--only", default="", help="measure only conversions whose names contain this")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        print(json.dumps(_worked(*asked.work, asked.processes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = [_measured(Path(folder), count, asked) for count in (asked.messages // 10, asked.messages)]
    short, long = figures
    console = Console()
    console.print(_table(short, long, asked.messages))
    if asked.json_to:
        asked.json_to.write_text(json.dumps({"short": short, "long": long}, indent=1) + "\n")


def _measured(folder: Path, count: int, asked: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Every conversion of a file of so many messages, each beside plain JSON of the same file."""
    files = {"openai_chat": folder / f"openai_chat-{count}.jsonl"}
    _write(files["openai_chat"], count)
    figures: dict[str, dict[str, float]] = {}
    for one, other in CONVERSIONS:
        target = folder / f"{other}-{count}.jsonl"
        files.setdefault(other, target)
        name = f"{one} → {other}"
        if asked.only not in name and one != "openai_chat" and other == "canonical":
            continue
        done = _run("convert", files[one], target, other, asked.processes)
        if asked.only in name:
            for plain in ("msgspec", "json"):
                done |= {f"{plain} {key}": value for key, value in _run(plain, files[one], target, "-", 1).items()}
            figures[name] = done
    return figures


def _run(work: str, source: Path, target: Path, to: str, processes: int) -> dict[str, float]:
    """One piece of work, in a process of its own. What is written for plain JSON is thrown away."""
    out = target if work == "convert" else target.with_suffix(".plain")
    command = [sys.executable, "-m", "benchmarks.convert_bench", "--processes", str(processes)]
    done = subprocess.run(
        [*command, "--work", work, str(source), str(out), to], check=True, stdout=subprocess.PIPE, text=True
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _worked(work: str, source: str, target: str, to: str, processes: int) -> dict[str, float]:
    import msgspec

    from dragoman import converting, formats

    formats.writable()
    began, cpu = time.perf_counter(), _cpu_s()
    if work == "convert":
        with converting.opened(Path(source)) as given, Path(target).open("wb") as out:
            converting.convert(given, out, to, processes=processes or None)
    else:
        with Path(source).open("rb") as lines, Path(target).open("wb") as out:
            for line in lines:
                if work == "msgspec":
                    out.write(msgspec.json.encode(msgspec.json.decode(line)) + b"\n")
                else:
                    out.write(json.dumps(json.loads(line)).encode() + b"\n")
    return {"cpu_s": _cpu_s() - cpu, "wall_s": time.perf_counter() - began, "peak_mb": _peak_mb()}


def _cpu_s() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _peak_mb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    most = max(resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return most * unit / 1e6


def _write(file: Path, count: int) -> None:
    chance = random.Random(1)

    def words(number: int) -> str:
        return " ".join(chance.choices(WORDS, k=number))

    with file.open("w", encoding="utf-8") as out:
        for number in range(0, count, 13):
            messages: list[object] = [{"role": "system", "content": words(40)}]
            for turn in range(3):
                given = json.dumps({"path": words(2), "limit": turn}, separators=(",", ":"))  # as models write it
                function = {"name": "read_file", "arguments": given}
                call = {"id": f"call_{number}_{turn}", "type": "function", "function": function}
                messages += [
                    {"role": "user", "content": words(30)},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": words(80)},
                    {"role": "assistant", "content": words(60)},
                ]
            out.write(json.dumps({"messages": messages[: count - number]}) + "\n")


def _table(short: dict[str, dict[str, float]], long: dict[str, dict[str, float]], count: int) -> Table:
    heads = (
        "",
        "CPU s",
        "wall s",
        "messages/s",
        "CPU ÷ msgspec",
        "CPU ÷ json",
        "wall ÷ msgspec",
        "wall ÷ json",
        "peak MB",
    )
    title = f"converting {count:,} messages; the peak with {count // 10:,} and with {count:,}"
    table = Table(*heads, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in long.items():
        ratios = [
            f"{one[f'{kind}_s'] / one[f'{plain} {kind}_s']:.1f}"
            for kind in ("cpu", "wall")
            for plain in ("msgspec", "json")
        ]
        peak = f"{short[name]['peak_mb']:.0f} {one['peak_mb']:.0f}"
        table.add_row(
            name, f"{one['cpu_s']:.2f}", f"{one['wall_s']:.2f}", f"{count / one['wall_s']:,.0f}", *ratios, peak
        )
    return table


if __name__ == "__main__":
    main()
