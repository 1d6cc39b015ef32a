"""Run subjects on mutated seeds and collect each class of failure once.

    run(subject, count, seed) -> failures

A class is the type of the exception and the line of the package that raised it. Each class has one case, which is
reduced as far as possible.
"""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import Any, Final

import msgspec

import dragoman
from dragoman.errors import InputError
from tests.fuzz.mutation import mutate, reduce
from tests.fuzz.subjects import Subject

_MUTATION_RATE: Final = 0.98  # other inputs are unchanged
_PACKAGE: Final = str(Path(dragoman.__file__).parent)


class Failure(msgspec.Struct):
    """One class of failures of a subject."""

    subject: str
    kind: str  # the exception and the place that raised it
    seed: int
    number: int  # of the first failing input
    case: Any  # reduced input
    trace: str
    count: int = 1

    def __str__(self) -> str:
        text = repr(self.case)
        case = text if len(text) < 1500 else f"{text[:1500]}…"
        seed_text = f"DRAGOMAN_FUZZ_SEED={self.seed}, input {self.number}"
        return f"{self.subject}: {self.kind} × {self.count} ({seed_text})\n  {case}\n{self.trace}"


def run(subject: Subject, count: int, seed: int) -> list[Failure]:
    """Run a subject on ``count`` mutated inputs."""
    failures: dict[str, Failure] = {}
    inputs = subject.seeds()
    assert inputs, f"no seeds for {subject.name}"
    for number in range(count):
        chance = random.Random(f"{seed} {subject.name} {number}")
        wire = chance.choice(inputs)
        value = mutate(wire, chance) if chance.random() < _MUTATION_RATE else wire
        state = chance.getstate()
        error = failure_of(subject, value, state)
        if error is None:
            continue
        kind = kind_of(error)
        if kind in failures:
            failures[kind].count += 1
        else:
            trace = "".join(traceback.format_exception(error)[-6:])
            case = reduce(value, lambda smaller, kind=kind, state=state: _fails_with(subject, smaller, state, kind))
            failures[kind] = Failure(subject.name, kind, seed, number, case, trace)
    return list(failures.values())


def failure_of(subject: Subject, value: Any, state: Any) -> Exception | None:
    """Return the forbidden exception that a subject raises on an input."""
    chance = random.Random()
    chance.setstate(state)
    try:
        subject.read(subject.spell(value, chance), chance)
    except InputError as error:
        return None if _is_rejection(error) else error
    except Exception as error:  # noqa: BLE001  every other exception is a failure
        return error
    return None


def _is_rejection(error: InputError) -> bool:
    """Return whether a reader rejected the input. An error during the use of accepted input is a failure."""
    return not any(frame.name.startswith("use_") for frame in traceback.extract_tb(error.__traceback__))


def kind_of(error: Exception) -> str:
    """Return the class of a failure: its type and the last line of the package in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    package_frames = [frame for frame in frames if frame.filename.startswith(_PACKAGE)] or list(frames)
    last = package_frames[-1]
    return f"{type(error).__name__} at {last.filename.removeprefix(_PACKAGE)}:{last.lineno} in {last.name}"


def _fails_with(subject: Subject, value: Any, state: Any, kind: str) -> bool:
    error = failure_of(subject, value, state)
    return error is not None and kind_of(error) == kind
