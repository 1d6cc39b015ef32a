"""Measure contestants in turns in one process, so that load on the machine affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table

_BAR = 32


def measure_cpu_us(
    contestants: Mapping[str, Callable[[], object]], *, rounds: int = 25, seconds: float = 6
) -> dict[str, float]:
    """Return the CPU time of one call of each in microseconds: the median of the rounds."""
    share = seconds / rounds / len(contestants)
    loops = {name: max(1, int(share / max(_time_once(call), 1e-7))) for name, call in contestants.items()}
    times_by_name: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = time.process_time()
            for _ in range(loops[name]):
                call()
            times_by_name[name].append((time.process_time() - start) / loops[name])
    return {name: statistics.median(times) * 1e6 for name, times in times_by_name.items()}


def _time_once(call: Callable[[], object]) -> float:
    call()
    start = time.process_time()
    for _ in range(20):
        call()
    return (time.process_time() - start) / 20


def print_figures(console: Console, title: str, figures: Mapping[str, float], limit: str, unit: str = "µs") -> None:
    """Print a table with the ratio of each figure to the limit, and a bar."""
    table = Table("", unit, f"÷ {limit}", "", title=title, title_justify="left")
    table.columns[1].justify = table.columns[2].justify = "right"
    longest = max(figures.values())
    for name, value in figures.items():
        bar = "█" * max(1, round(value / longest * _BAR))
        table.add_row(name, f"{value:.1f}", f"{value / figures[limit]:.2f}", f"[cyan]{bar}[/cyan]")
    console.print(table)
