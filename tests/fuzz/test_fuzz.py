"""Mutated inputs of every dialect and format: each is refused with a documented error, or can be used for everything.

Short by default and always the same. ``make fuzz`` runs it for minutes: ``DRAGOMAN_FUZZ_COUNT`` inputs for each
subject, from ``DRAGOMAN_FUZZ_SEED`` on.
"""

from __future__ import annotations

import logging
import os

import pytest

from tests.fuzz.run import run
from tests.fuzz.seeds import COUNT
from tests.fuzz.subjects import Subject, subjects

SEED = int(os.environ.get("DRAGOMAN_FUZZ_SEED", "1"))


@pytest.mark.parametrize("subject", subjects(), ids=lambda subject: subject.name)
def test_every_mutated_input_is_refused_in_words_or_can_be_used(subject: Subject) -> None:
    logging.disable(logging.WARNING)
    try:
        failures = run(subject, COUNT, SEED)
    finally:
        logging.disable(logging.NOTSET)
    assert not failures, "\n".join(map(str, failures))
