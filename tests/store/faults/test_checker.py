"""The checker finds every kind of violation that is planted, and nothing where there is none."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest

from tests.store.faults.checker import Log, Tables, folder_blob_of, problems, sqlite_tables
from tests.store.faults.harness import Harness


@dataclasses.dataclass
class Evidence:
    """The input of the checker."""

    tables: Tables
    blobs: dict[str, bytes | None]
    log: Log

    def problems(self) -> list[str]:
        return problems(self.tables, self.blobs.get, self.log)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """A store of three writers that were left alone."""
    path = tmp_path_factory.mktemp("sound") / "store.db"
    harness = Harness(f"sqlite:///{path}", writers=3)
    harness.finish(new=17)
    tables = sqlite_tables(path)
    blob_of = folder_blob_of(path.with_name(f"{path.name}-blobs"))
    return Evidence(tables, {row["sha256"]: blob_of(row["sha256"]) for row in tables["blob_refs"]}, harness.log)


def _lose_the_last(it: Evidence) -> None:
    session = max(it.tables["sessions"], key=lambda row: row["last_seq"])
    rows = [row for row in it.tables["messages"] if row["session_id"] == session["id"]]
    it.tables["messages"].remove(max(rows, key=lambda row: row["seq"]))
    session["last_seq"] -= 1


def _lose_one_in_the_middle(it: Evidence) -> None:
    it.tables["messages"].remove(next(row for row in it.tables["messages"] if row["seq"] == 3))


def _double_one(it: Evidence) -> None:
    session = it.tables["sessions"][0]
    row = next(row for row in it.tables["messages"] if row["session_id"] == session["id"])
    session["last_seq"] += 1
    it.tables["messages"].append(row | {"seq": session["last_seq"], "id": "ZZ"})


def _swap_two(it: Evidence) -> None:
    one, other = (row for row in it.tables["messages"] if row["session_id"] == "sess_own_0" and row["seq"] in (1, 4))
    one["seq"], other["seq"] = other["seq"], one["seq"]


def _store_what_nobody_asked_for(it: Evidence) -> None:
    it.log.begun.pop(next(iter(it.log.stored)))


def _store_what_was_refused(it: Evidence) -> None:
    it.log.refused.add(next(iter(it.log.stored)))


def _change_a_letter(it: Evidence) -> None:
    row = it.tables["messages"][0]
    row["content_json"] = row["content_json"].replace("says", "sayS").replace("answers", "answerS")


def _change_a_hash(it: Evidence) -> None:
    row = it.tables["messages"][0]
    row["hash"] = bytes([row["hash"][0] ^ 1]) + row["hash"][1:]


def _acknowledge_another_place(it: Evidence) -> None:
    name, (time, places) = next(iter(it.log.stored.items()))
    it.log.stored[name] = time, tuple(place + 1 for place in places)


def _acknowledge_before_an_earlier_one_began(it: Evidence) -> None:
    last = max(it.log.stored, key=lambda name: it.log.stored[name][1])
    it.log.stored[last] = 1, it.log.stored[last][1]


def _tell_two_places(it: Evidence) -> None:
    it.log.read(f"stored {next(iter(it.log.stored))} 5 77")


def _forget_an_end(it: Evidence) -> None:
    row = next(row for row in it.tables["messages"] if "and more" in row["content_json"])
    row["content_json"] = row["content_json"].replace(" and more", "")


def _lose_a_call(it: Evidence) -> None:
    it.tables["tool_calls"].pop()


def _forget_a_result(it: Evidence) -> None:
    it.tables["tool_calls"][0]["status"] = "pending"


def _count_twice(it: Evidence) -> None:
    it.tables["usage"][0]["input_tokens"] *= 2


def _lose_a_blob(it: Evidence) -> None:
    it.blobs[next(iter(it.blobs))] = None


def _change_a_blob(it: Evidence) -> None:
    it.blobs[next(iter(it.blobs))] = b"something else"


def _lose_the_name_of_a_blob(it: Evidence) -> None:
    it.tables["blob_refs"].pop()


def _move_a_key(it: Evidence) -> None:
    for row in it.tables["idempotency"]:
        row["first_seq"] += 1


PLANTED = [
    planted for name, planted in list(globals().items()) if name.startswith("_") and hasattr(planted, "__code__")
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_violation_is_found(plant: Callable[[Evidence], None], sound: Evidence) -> None:
    assert sound.problems() == []
    damaged = copy.deepcopy(sound)
    plant(damaged)
    assert damaged.problems()


def test_the_evidence_holds_every_kind_of_append(sound: Evidence) -> None:
    assert sound.log.acknowledged == len(sound.tables["messages"]) > 60
    assert {len(sound.tables[name]) > 2 for name in ("tool_calls", "usage", "idempotency", "blob_refs")} == {True}
    assert sound.log.ended
