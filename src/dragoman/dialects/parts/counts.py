"""What a provider says that a call consumed, as far as that is possible.

    possible_usage(usage, dialect) -> TokenUsage

Invariant: no usage that a dialect reads has a figure beyond ``message.MOST_TOKENS`` or ``message.MOST_USD``. An
impossible figure is dropped and named in a warning, the usage is marked as estimated, and the answer is kept.
"""

from __future__ import annotations

from dragoman.message import AnyUsage, usage_problems, without_figures


def possible_usage(usage: AnyUsage, dialect: str) -> AnyUsage:
    """The usage without its impossible figures."""
    problems = usage_problems(usage)
    if not problems:
        return usage
    import logging  # noqa: PLC0415  a fifth of the time that importing this package takes

    what = "; ".join(problems.values())
    logging.getLogger("dragoman.dialects").warning(
        "%s: an impossible usage is not counted (%s)", dialect, what, extra={"dialect": dialect}
    )
    is_counted = problems.keys() <= {"provider_cost_usd"}
    return without_figures(usage, problems).replace(estimated=usage.estimated or not is_counted)
