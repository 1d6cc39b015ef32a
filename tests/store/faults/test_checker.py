"""Tests that the checker detects every kind of violation and reports none in a sound store."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest

from tests.store.faults.checker import Log, Tables, create_folder_reader, find_problems, read_sqlite_tables
from tests.store.faults.harness import Harness


@dataclasses.dataclass
class Evidence:
    """The input of the checker."""

    tables: Tables
    blobs: dict[str, bytes | None]
    log: Log

    def problems(self) -> list[str]:
        return find_problems(self.tables, self.blobs.get, self.log)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The evidence of three undisturbed writers."""
    path = tmp_path_factory.mktemp("sound") / "store.db"
    harness = Harness(f"sqlite:///{path}", writers=3)
    harness.finish(new=17)
    tables = read_sqlite_tables(path)
    blob_of = create_folder_reader(path.with_name(f"{path.name}-blobs"))
    return Evidence(tables, {row["sha256"]: blob_of(row["sha256"]) for row in tables["blob_refs"]}, harness.log)


def _delete_last_message(evidence: Evidence) -> None:
    session = max(evidence.tables["sessions"], key=lambda row: row["last_seq"])
    rows = [row for row in evidence.tables["messages"] if row["session_id"] == session["id"]]
    evidence.tables["messages"].remove(max(rows, key=lambda row: row["seq"]))
    session["last_seq"] -= 1


def _delete_middle_message(evidence: Evidence) -> None:
    evidence.tables["messages"].remove(next(row for row in evidence.tables["messages"] if row["seq"] == 3))


def _duplicate_message(evidence: Evidence) -> None:
    session = evidence.tables["sessions"][0]
    row = next(row for row in evidence.tables["messages"] if row["session_id"] == session["id"])
    session["last_seq"] += 1
    evidence.tables["messages"].append(row | {"seq": session["last_seq"], "id": "ZZ"})


def _swap_messages(evidence: Evidence) -> None:
    one, other = (
        row for row in evidence.tables["messages"] if row["session_id"] == "sess_own_0" and row["seq"] in (1, 4)
    )
    one["seq"], other["seq"] = other["seq"], one["seq"]


def _store_unrequested_message(evidence: Evidence) -> None:
    evidence.log.started.pop(next(iter(evidence.log.stored)))


def _store_rejected_message(evidence: Evidence) -> None:
    evidence.log.refused.add(next(iter(evidence.log.stored)))


def _change_text(evidence: Evidence) -> None:
    row = evidence.tables["messages"][0]
    row["content_json"] = row["content_json"].replace("says", "sayS").replace("answers", "answerS")


def _change_hash(evidence: Evidence) -> None:
    row = evidence.tables["messages"][0]
    row["hash"] = bytes([row["hash"][0] ^ 1]) + row["hash"][1:]


def _acknowledge_other_numbers(evidence: Evidence) -> None:
    name, (time, numbers) = next(iter(evidence.log.stored.items()))
    evidence.log.stored[name] = time, tuple(number + 1 for number in numbers)


def _acknowledge_before_earlier_start(evidence: Evidence) -> None:
    last = max(evidence.log.stored, key=lambda name: evidence.log.stored[name][1])
    evidence.log.stored[last] = 1, evidence.log.stored[last][1]


def _acknowledge_twice_with_other_numbers(evidence: Evidence) -> None:
    evidence.log.read(f"stored {next(iter(evidence.log.stored))} 5 77")


def _drop_update(evidence: Evidence) -> None:
    row = next(row for row in evidence.tables["messages"] if "and more" in row["content_json"])
    row["content_json"] = row["content_json"].replace(" and more", "")


def _delete_call(evidence: Evidence) -> None:
    evidence.tables["tool_calls"].pop()


def _delete_result(evidence: Evidence) -> None:
    evidence.tables["tool_calls"][0]["status"] = "pending"


def _count_usage_twice(evidence: Evidence) -> None:
    evidence.tables["usage"][0]["input_tokens"] *= 2


def _delete_blob(evidence: Evidence) -> None:
    evidence.blobs[next(iter(evidence.blobs))] = None


def _change_blob(evidence: Evidence) -> None:
    evidence.blobs[next(iter(evidence.blobs))] = b"something else"


def _delete_blob_reference(evidence: Evidence) -> None:
    evidence.tables["blob_refs"].pop()


def _move_idempotency_key(evidence: Evidence) -> None:
    for row in evidence.tables["idempotency"]:
        row["first_seq"] += 1


VIOLATIONS = [
    planted for name, planted in list(globals().items()) if name.startswith("_") and hasattr(planted, "__code__")
]


@pytest.mark.parametrize("plant", VIOLATIONS, ids=lambda plant: plant.__name__.strip("_"))
def test_violation_is_detected(plant: Callable[[Evidence], None], sound: Evidence) -> None:
    assert sound.problems() == []
    damaged = copy.deepcopy(sound)
    plant(damaged)
    assert damaged.problems()


def test_evidence_contains_every_kind_of_append(sound: Evidence) -> None:
    assert sound.log.acknowledgement_count == len(sound.tables["messages"]) > 60
    assert {len(sound.tables[name]) > 2 for name in ("tool_calls", "usage", "idempotency", "blob_refs")} == {True}
    assert sound.log.ended
