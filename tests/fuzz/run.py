"""Runs subjects over mutated seeds, and collects each class of failure once.

    run(subject, count, seed) -> failures

A class is the type of the exception and the line of ours that raised it. For each class one case is kept, made as small
as possible.
"""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import Any, Final

import msgspec

import dragoman
from dragoman.errors import InputError
from tests.fuzz.mutation import mutate, smallest
from tests.fuzz.subjects import Subject

_MUTATED: Final = 0.98  # the others stay as they are
_OURS: Final = str(Path(dragoman.__file__).parent)


class Failure(msgspec.Struct):
    """One class of failures of a subject."""

    subject: str
    kind: str  # the exception, and where it was raised
    seed: int
    number: int  # of the input that failed first
    case: Any  # the smallest value that fails
    trace: str
    count: int = 1

    def __str__(self) -> str:
        shown = repr(self.case)
        case = shown if len(shown) < 1500 else f"{shown[:1500]}…"
        again = f"DRAGOMAN_FUZZ_SEED={self.seed}, input {self.number}"
        return f"{self.subject}: {self.kind} × {self.count} ({again})\n  {case}\n{self.trace}"


def run(subject: Subject, count: int, seed: int) -> list[Failure]:
    """Feed so many mutated inputs to a subject."""
    found: dict[str, Failure] = {}
    inputs = subject.seeds()
    assert inputs, f"no seeds for {subject.name}"
    for number in range(count):
        chance = random.Random(f"{seed} {subject.name} {number}")
        wire = chance.choice(inputs)
        made = mutate(wire, chance) if chance.random() < _MUTATED else wire
        state = chance.getstate()
        error = failure_of(subject, made, state)
        if error is None:
            continue
        kind = kind_of(error)
        if kind in found:
            found[kind].count += 1
        else:
            trace = "".join(traceback.format_exception(error)[-6:])
            case = smallest(made, lambda smaller, kind=kind, state=state: _fails_so(subject, smaller, state, kind))
            found[kind] = Failure(subject.name, kind, seed, number, case, trace)
    return list(found.values())


def failure_of(subject: Subject, made: Any, state: Any) -> Exception | None:
    """Return the forbidden exception that a subject raises on an input."""
    chance = random.Random()
    chance.setstate(state)
    try:
        subject.read(subject.spell(made, chance), chance)
    except InputError as error:
        return None if _is_refusal(error) else error
    except Exception as error:  # noqa: BLE001  every other one is what is looked for
        return error
    return None


def _is_refusal(error: InputError) -> bool:
    """Whether a reader refused the input: an error that is raised while what was accepted is used is a failure."""
    return not any(frame.name.startswith("use_") for frame in traceback.extract_tb(error.__traceback__))


def kind_of(error: Exception) -> str:
    """The class of a failure: its type, and the last line of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)] or list(frames)
    last = ours[-1]
    return f"{type(error).__name__} at {last.filename.removeprefix(_OURS)}:{last.lineno} in {last.name}"


def _fails_so(subject: Subject, made: Any, state: Any, kind: str) -> bool:
    error = failure_of(subject, made, state)
    return error is not None and kind_of(error) == kind
