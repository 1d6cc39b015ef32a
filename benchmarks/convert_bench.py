"""Measure the conversion of a file, beside reading and writing the same file as plain JSON.

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
    options = parser.parse_args()
    if options.work:
        print(json.dumps(_run_here(*options.work, options.processes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = [_measure(Path(folder), count, options) for count in (options.messages // 10, options.messages)]
    short, long = figures
    console = Console()
    console.print(_table(short, long, options.messages))
    if options.json_to:
        options.json_to.write_text(json.dumps({"short": short, "long": long}, indent=1) + "\n")


def _measure(folder: Path, count: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Every conversion of a file of so many messages, each beside plain JSON of the same file."""
    files = {"openai_chat": folder / f"openai_chat-{count}.jsonl"}
    _write(files["openai_chat"], count)
    figures: dict[str, dict[str, float]] = {}
    for source_format, target_format in CONVERSIONS:
        target = folder / f"{target_format}-{count}.jsonl"
        files.setdefault(target_format, target)
        name = f"{source_format} → {target_format}"
        if options.only not in name and source_format != "openai_chat" and target_format == "canonical":
            continue
        done = _run("convert", files[source_format], target, target_format, options.processes)
        if options.only in name:
            for plain in ("msgspec", "json"):
                done |= {
                    f"{plain} {key}": value for key, value in _run(plain, files[source_format], target, "-", 1).items()
                }
            figures[name] = done
    return figures


def _run(work: str, source: Path, target: Path, to: str, processes: int) -> dict[str, float]:
    """One piece of work, in a process of its own. What is written for plain JSON is thrown away."""
    out = target if work == "convert" else target.with_suffix(".plain")
    command = [sys.executable, "-m", "benchmarks.convert_bench", "--processes", str(processes)]
    done = subprocess.run(
        [*command, "--work", work, str(source), str(out), to], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _run_here(work: str, source: str, target: str, to: str, processes: int) -> dict[str, float]:
    import msgspec

    from dragoman import conversion, formats

    formats.writable()
    start, cpu = time.perf_counter(), _cpu_s()
    if work == "convert":
        with conversion.open_source(Path(source)) as input_source, Path(target).open("wb") as out:
            conversion.convert(input_source, out, to, processes=processes or None)
    else:
        with Path(source).open("rb") as lines, Path(target).open("wb") as out:
            for line in lines:
                if work == "msgspec":
                    out.write(msgspec.json.encode(msgspec.json.decode(line)) + b"\n")
                else:
                    out.write(json.dumps(json.loads(line)).encode() + b"\n")
    return {"cpu_s": _cpu_s() - cpu, "wall_s": time.perf_counter() - start, "peak_mb": _peak_mb()}


def _cpu_s() -> float:
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _peak_mb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    most = max(resource.getrusage(which).ru_maxrss for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return most * unit / 1e6


def _write(file: Path, count: int) -> None:
    random_source = random.Random(1)

    def words(number: int) -> str:
        return " ".join(random_source.choices(WORDS, k=number))

    with file.open("w", encoding="utf-8") as out:
        for number in range(0, count, 13):
            messages: list[object] = [{"role": "system", "content": words(40)}]
            for turn in range(3):
                arguments = json.dumps({"path": words(2), "limit": turn}, separators=(",", ":"))  # as models write it
                function = {"name": "read_file", "arguments": arguments}
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
    for name, row in long.items():
        ratios = [
            f"{row[f'{kind}_s'] / row[f'{plain} {kind}_s']:.1f}"
            for kind in ("cpu", "wall")
            for plain in ("msgspec", "json")
        ]
        peak = f"{short[name]['peak_mb']:.0f} {row['peak_mb']:.0f}"
        table.add_row(
            name, f"{row['cpu_s']:.2f}", f"{row['wall_s']:.2f}", f"{count / row['wall_s']:,.0f}", *ratios, peak
        )
    return table


if __name__ == "__main__":
    main()
