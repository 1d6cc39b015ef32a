"""Measure contestants in turns, in one run, so that what the machine does meanwhile happens to all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table

_BAR = 32


def cpu_us(
    contestants: Mapping[str, Callable[[], object]], *, rounds: int = 25, seconds: float = 6
) -> dict[str, float]:
    """Microseconds of CPU for one call of each, as the median of rounds in which each has its turn."""
    share = seconds / rounds / len(contestants)
    loops = {name: max(1, int(share / max(_once(call), 1e-7))) for name, call in contestants.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            began = time.process_time()
            for _ in range(loops[name]):
                call()
            taken[name].append((time.process_time() - began) / loops[name])
    return {name: statistics.median(times) * 1e6 for name, times in taken.items()}


def _once(call: Callable[[], object]) -> float:
    call()
    began = time.process_time()
    for _ in range(20):
        call()
    return (time.process_time() - began) / 20


def show(console: Console, title: str, measured: Mapping[str, float], limit: str, unit: str = "µs") -> None:
    """A table with the ratio of each to the limit, and a bar to see it by."""
    table = Table("", unit, f"÷ {limit}", "", title=title, title_justify="left")
    table.columns[1].justify = table.columns[2].justify = "right"
    longest = max(measured.values())
    for name, value in measured.items():
        bar = "█" * max(1, round(value / longest * _BAR))
        table.add_row(name, f"{value:.1f}", f"{value / measured[limit]:.2f}", f"[cyan]{bar}[/cyan]")
    console.print(table)
