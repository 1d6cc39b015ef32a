"""What a provider says that a call consumed, as far as that is possible.

    counts = Counts(NAME)
    counts.read(wire, "prompt_tokens") -> int      0 if there is no such count, or an impossible one
    counts.split_prompt(prompt, cached, written)   the disjoint parts of a prompt
    counts.check(usage) -> TokenUsage              the usage without impossible figures
    drop_impossible_counts(usage, dialect) -> TokenUsage   the same for a usage that was read elsewhere

A count is a whole number from 0 to ``MAX_CALL_TOKENS``, and no part is larger than its whole. Invariant: no usage that
a dialect reads breaks this, or has a figure beyond ``message.MAX_USD``. An impossible figure is dropped and named in a
warning, the usage is marked as estimated, and the answer is kept.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.message import AnyUsage, TokenUsage, usage_problems, without_figures

MAX_CALL_TOKENS: Final = 10**8  # in one call: a hundred times the context of the largest models
_WHOLES: Final = (  # parts, and what each is a part of
    ("reasoning_tokens", "output_tokens"),
    ("output_audio_tokens", "output_tokens"),
    ("cache_creation_1h_input_tokens", "cache_creation_input_tokens"),
)


class Counts:
    """Reads the counts of one usage, and remembers the impossible ones."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._problems: list[str] = []

    def read(self, wire: Any, *names: str) -> int:
        """The first count above 0 under these names; 0 if there is none."""
        for name in names if isinstance(wire, dict) else ():
            value = wire.get(name)
            if value is None:
                continue
            count = _count_from(value)
            if count is None:
                self._problems.append(f"{name} is not a whole number from 0 to {MAX_CALL_TOKENS}")
            elif count:
                return count
        return 0

    def split_prompt(self, prompt: int, cached: int, created: int = 0) -> tuple[int, int, int]:
        """What of a prompt was fresh, read from a cache, and written to one. Parts that exceed it are dropped."""
        if cached + created > prompt:
            self._problems.append(f"{cached} cached and {created} cache creation tokens are more than the prompt")
            return prompt, 0, 0
        return prompt - cached - created, cached, created

    def drop_impossible(self, usage: AnyUsage) -> AnyUsage:
        """The usage without impossible figures, marked as estimated if a count was impossible."""
        problems = usage_problems(usage, MAX_CALL_TOKENS) | _part_problems(usage)
        if not problems and not self._problems:
            return usage
        import logging  # noqa: PLC0415  a fifth of the time that importing this package takes

        description = "; ".join([*self._problems, *problems.values()])
        logging.getLogger("dragoman.dialects").warning(
            "%s: an impossible usage is not counted (%s)", self._dialect, description, extra={"dialect": self._dialect}
        )
        has_valid_counts = not self._problems and problems.keys() <= {"provider_cost_usd"}
        return without_figures(usage, problems).replace(estimated=usage.estimated or not has_valid_counts)


def drop_impossible_counts(usage: AnyUsage, dialect: str) -> AnyUsage:
    """The usage without its impossible figures."""
    return Counts(dialect).drop_impossible(usage)


def _count_from(value: Any) -> int | None:
    """A whole number, which some providers write as a float; nothing if it is not a possible count."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_CALL_TOKENS else None


def _part_problems(usage: TokenUsage) -> dict[str, str]:
    return {
        part: f"{part} is more than {whole}" for part, whole in _WHOLES if getattr(usage, part) > getattr(usage, whole)
    }
