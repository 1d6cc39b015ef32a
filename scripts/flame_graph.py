"""Draw where the CPU time of a run goes: a flame graph of the server, as SVG.

    python -m scripts.flame_graph docs/images/run-flame.svg --runs 300

The chat server of the benchmarks runs in this process, its provider and its clients in others. A timer that counts the
CPU time of this process interrupts it, and the stack of the event loop is noted. A box is a function; its width is its
share of the samples, the boxes on it are what it called. Boxes below ``MIN_SHARE`` are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import FrameType
from typing import Final

import dragoman
from benchmarks import chat_server
from benchmarks.server_bench import start_process

INTERVAL_S: Final = 0.001
MIN_SHARE: Final = 0.002
WIDTH: Final = 1200
ROW: Final = 16
_CHARACTER_WIDTH: Final = 6.2
_ROOT: Final = f"{Path(dragoman.__file__).parent}/"
_COLORS: Final = {
    "server": "#e8a33d",
    "turn": "#d9695f",
    "client": "#b58bd9",
    "store": "#6fa8dc",
    "bus": "#93c47d",
    "wire": "#e6c84f",
    "dialects": "#e6c84f",
}
_OTHER_COLOR: Final = "#f0d9b5"  # further modules of Dragoman
_LIBRARY_COLOR: Final = "#d5d5d5"

Stack = tuple[str, ...]


class Sampler:
    """Notes the stack of the main thread whenever this process has used ``INTERVAL_S`` of CPU time."""

    def __init__(self) -> None:
        self.stacks: Counter[Stack] = Counter()
        self._names: dict[object, str] = {}

    def start(self) -> None:
        """Start the timer."""
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> None:
        """Stop the timer."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _note(self, _: int, frame: FrameType | None) -> None:
        self.stacks[tuple(self._name_frames(frame))[::-1]] += 1

    def _name_frames(self, frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            code = frame.f_code
            if code not in self._names:
                self._names[code] = name_function(code.co_filename, code.co_qualname)
            yield self._names[code]
            frame = frame.f_back


def name_function(path: str, function: str) -> str:
    """The module and the name of a function; of a library, its package."""
    function = function.replace(".<locals>", "")
    if path.startswith(_ROOT):
        return f"{path.removeprefix(_ROOT).removesuffix('.py')} {function}"
    parts = Path(path).parts
    package = parts[parts.index("site-packages") + 1] if "site-packages" in parts else Path(path).stem
    return f"({package.removesuffix('.py')}) {function}"


class Box:
    """A function at its place in the stacks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.children: dict[str, Box] = {}

    def add(self, stack: Stack, count: int) -> None:
        """Add samples of a stack."""
        box = self
        box.count += count
        for name in stack:
            box = box.children.setdefault(name, Box(name))
            box.count += count


def make_tree(stacks: Counter[Stack]) -> Box:
    """All stacks as one tree, without the frames that all of them begin with."""
    root = Box("CPU time of the event loop")
    for stack, count in stacks.items():
        start = max((at + 1 for at, name in enumerate(stack) if name.startswith("(runners)")), default=0)
        root.add(stack[start:], count)
    return root


def draw(root: Box, title: str) -> str:
    """The tree as SVG, the first function at the bottom."""
    rows: list[tuple[int, float, float, Box]] = []

    def place(box: Box, depth: int, left: float) -> None:
        share = box.count / root.count
        if share < MIN_SHARE:
            return
        rows.append((depth, left, share * WIDTH, box))
        for child in sorted(box.children.values(), key=lambda item: item.name):
            place(child, depth + 1, left)
            left += child.count / root.count * WIDTH

    place(root, 0, 0.0)
    height = (max(depth for depth, *_ in rows) + 1) * ROW + 2 * ROW
    boxes = "\n".join(
        _draw_box(box, height - (depth + 1) * ROW, left, width, 100 * box.count / root.count)
        for depth, left, width, box in rows
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace"'
        f' font-size="10">\n<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="4" y="12" font-size="12">{escape(title)}</text>\n{boxes}\n</svg>\n'
    )


def _draw_box(box: Box, top: int, left: float, width: float, percent: float) -> str:
    room = int((width - 4) / _CHARACTER_WIDTH)
    label = box.name if len(box.name) <= room else box.name[: max(0, room - 1)] + "…"
    text = f'<text x="{left + 2:.1f}" y="{top + 11}">{escape(label)}</text>' if room >= 4 else ""
    return (
        f"<g><title>{escape(box.name)}: {percent:.1f} %</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{max(0.3, width - 0.4):.1f}" height="{ROW - 1}"'
        f' fill="{_color(box.name)}"/>{text}</g>'
    )


def _color(name: str) -> str:
    if name.startswith("("):
        return _LIBRARY_COLOR
    return _COLORS.get(name.partition("/")[0], _OTHER_COLOR)


_CLIENT: Final = """
import asyncio, sys
import aiohttp
from benchmarks.server_bench import Client, per_second

async def main(port: str, count: str) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        client = Client(http)
        await per_second(client.run, 4, 40)
        print("ready", flush=True)
        sys.stdin.readline()
        await per_second(client.run, 4, int(count))
        print("done", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def sample_runs(folder: Path, provider: int, count: int) -> Sampler:
    """Serve so many runs, and sample them."""
    sampler = Sampler()
    async with chat_server.open_server(folder, provider, messages=0, calls=1) as port:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-c", _CLIENT, str(port), str(count))
        client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert client.stdin is not None
        assert client.stdout is not None
        await client.stdout.readline()
        sampler.start()
        client.stdin.write(b"\n")
        await client.stdout.readline()
        sampler.stop()
        await client.wait()
    return sampler


def main() -> None:
    """Sample runs, and write the SVG."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="flame-") as folder,
        start_process("benchmarks.turn_server") as (provider, _),
        asyncio.Runner(loop_factory=chat_server.loop_factory()) as runner,
    ):
        sampler = runner.run(sample_runs(Path(folder), provider, options.runs))
    root = make_tree(sampler.stacks)
    title = f"A run of 200 words on SQLite: {root.count:,} samples of {options.runs} runs"
    options.file.write_text(draw(root, title))
    print(f"{options.file}: {root.count:,} samples")


if __name__ == "__main__":
    main()
