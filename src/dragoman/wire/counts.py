"""Read the token usage of a provider and drop impossible counts.

    counts = Counts(NAME)
    counts.read(wire, "prompt_tokens") -> int           0 if the count is absent or impossible
    counts.split_prompt(prompt, cached, created)        the disjoint parts of a prompt
    counts.drop_impossible(usage) -> TokenUsage         the usage without impossible figures
    drop_impossible_counts(usage, dialect)              the same for a usage that was read elsewhere

A count is an integer from 0 to ``MAX_CALL_TOKENS``, and no part is larger than its whole. Invariant: no usage that a
dialect reads breaks this or has a figure beyond ``message.MAX_USD``. An impossible figure is dropped and logged as a
warning, and the usage is marked as estimated.
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
    """Reads the counts of one usage and collects the impossible ones."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._problems: list[str] = []

    def read(self, wire: Any, *names: str) -> int:
        """Return the first count above 0 under these names; 0 if there is none."""
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
        """Return the fresh, cached and cache-creation tokens of a prompt; parts that exceed it are dropped.

        Azure reports more cached tokens than the prompt has for Grok: they include a system prompt of its own of about
        160 tokens, which the prompt does not. How many of the others were cached is unknown. OpenRouter reports tokens
        that Gemini has cached and read at once in both parts.
        """
        if cached + created > prompt:
            self._problems.append(f"{cached} cached and {created} cache creation tokens are more than the prompt")
            return (prompt - cached, cached, 0) if created and cached <= prompt else (prompt, 0, 0)
        return prompt - cached - created, cached, created

    def drop_impossible(self, usage: AnyUsage) -> AnyUsage:
        """Return the usage without impossible figures, marked as estimated if a count was impossible."""
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
    """Return the usage without its impossible figures."""
    return Counts(dialect).drop_impossible(usage)


def _count_from(value: Any) -> int | None:
    """Return an integer, which some providers write as a float; ``None`` if it is not a possible count."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_CALL_TOKENS else None


def _part_problems(usage: TokenUsage) -> dict[str, str]:
    return {
        part: f"{part} is more than {whole}" for part, whole in _WHOLES if getattr(usage, part) > getattr(usage, whole)
    }
