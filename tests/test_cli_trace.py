"""Tests of cost, reprice, trace and evaluate on the command line, run as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman.bus import Bus
from dragoman.bus.trace_writer import TraceWriter
from dragoman.cli.tour import example_conversation
from dragoman.message import UNPRICED, Message, Usage
from dragoman.store import Evaluation, Store, message_writer
from tests.bus.test_otel import emit_turn
from tests.cli_store import expect_error, run, run_json, with_store
from tests.store.messages import answer_message, text_message
from tests.test_cli import COMMAND


def usage(cost: str, tokens: int = 1_000_000) -> Usage:
    return Usage(input_tokens=tokens, output_tokens=0, cost_usd=Decimal(cost), pricing_version="then", latency_ms=1_500)


def at(day: int, message: Message) -> Message:
    return message.replace(created_at=datetime(2026, 11, day, 12, tzinfo=UTC))


SONNET = {"model": "anthropic:claude-sonnet-4-6", "provider": "anthropic"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store in which two users have costs on three days."""
    path = tmp_path / "store.db"

    async def fill(store: Store) -> None:
        await store.create_session("sess_1", user_id="ada", team_id="blue")
        await store.append(
            "sess_1",
            [
                at(1, text_message("fix cart.py")),
                at(1, answer_message("Done", **SONNET, usage=usage("3"), user_id="ada", run_id="turn_1")),
                at(
                    4, answer_message("And more", **SONNET, usage=usage("1.5", 500_000), user_id="ada", run_id="turn_1")
                ),
            ],
        )
        await store.create_session("sess_2", user_id="grace")
        other = {"model": "nobody:knows", "provider": "nobody", "user_id": "grace", "team_id": "blue"}
        await store.append(
            "sess_2", [at(2, text_message("x")), at(2, answer_message("y", **other, usage=usage("0.25")))]
        )

    with_store(path, fill)
    return path


# --- cost ------------------------------------------------------------------------------------------------------------


def test_cost_is_summed_and_drawn_per_day(file: Path) -> None:
    done = run("cost", store=file, env={"COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "$4.75 for 3 replies · 2,500,000 tokens in, 0 out"
    assert [line.split()[0] for line in lines[2:6]] == ["model", SONNET["model"], "nobody:knows", "total"]
    days = lines[7:]
    assert [day[:15] for day in days] == [
        "Sun 2026-11-01",
        "Mon 2026-11-02",
        "Tue 2026-11-03",
        "Wed 2026-11-04",
    ] or days
    assert [day.split()[-1] for day in days] == ["$3.00", "$0.25", "·", "$1.50"]
    assert days[0].count("█") > days[3].count("█") > days[1].count("█") > 0
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("options", "total", "groups"),
    [
        (("--by", "user"), "4.75", ["ada", "grace"]),
        (("--by", "session"), "4.75", ["sess_1", "sess_2"]),
        (("--by", "team"), "4.75", [None, "blue"]),
        (("--by", "day", "--since", "2026-11-02"), "1.75", ["2026-11-02", "2026-11-04"]),
        (("--until", "2026-11-02"), "3", [SONNET["model"]]),
        (("--user", "grace"), "0.25", ["nobody:knows"]),
        (("--session", "sess_1", "--model", "nobody:knows"), "0", []),
    ],
)
def test_cost_is_printed_as_json_for_every_filter(
    file: Path, options: tuple[str, ...], total: str, groups: list[Any]
) -> None:
    report = run_json("cost", *options, store=file)
    assert Decimal(report["total_usd"]) == Decimal(total)
    assert sorted((total_row["group"] for total_row in report["totals"]), key=lambda name: name or "") == groups


def test_store_without_usage_has_no_cost(tmp_path: Path) -> None:
    with_store(tmp_path / "store.db", lambda store: store.create_session())
    assert run("cost", store=tmp_path / "store.db").stdout == "no usage\n"
    assert run("reprice", store=tmp_path / "store.db").stdout == "no usage\n"


# --- reprice ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.json"
    rates = {"input_per_mtok_usd": 2, "output_per_mtok_usd": 20}
    later = {**rates, "input_per_mtok_usd": 8, "effective_from": "2026-11-03"}
    path.write_text(json.dumps({"pricing_version": "now", "models": {SONNET["model"]: [rates, later]}}))
    return path


def test_reprice_shows_the_difference_and_writes_nothing(file: Path, prices: Path) -> None:
    before = run_json("cost", store=file)
    done = run("reprice", "--prices", prices, store=file)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert rows[SONNET["model"]] == ["2", "$4.50", "$6.00", "+$1.50"]  # 2 on the first day, 4 on the fourth
    assert rows["nobody:knows"] == ["1", "$0.25", "$0.25", "$0.00"]
    assert rows["total"] == ["3", "$4.75", "$6.25", "+$1.50"]
    assert "1 reply without a price in the new table keep their cost" in done.stdout
    assert "compared with then" in done.stdout
    assert run_json("cost", store=file) == before


def test_reprice_keep_stores_new_amounts_beside_old_amounts(file: Path, prices: Path) -> None:
    before = run_json("cost", store=file)
    report = run_json("reprice", "--prices", prices, "--keep", store=file)
    version = report["prices_version"]
    assert version.endswith("+now")
    assert report["was"] == ["then"]
    assert run_json("cost", store=file) == before
    after = run_json("cost", "--prices-version", version, store=file)
    assert Decimal(after["total_usd"]) == Decimal("6.25")
    assert f"with prices {version}" in run("cost", "--prices-version", version, store=file).stdout
    (first, *_) = run_json("show", "sess_1", store=file)["messages"][1:]
    assert first["message"]["metadata"]["usage"]["cost_usd"] == "3"
    assert "no amounts for prices version 'x'" in expect_error(
        run("cost", "--prices-version", "x", store=file), "invalid_input"
    )


@pytest.fixture
def store_with_unpriced_reply(tmp_path: Path) -> Path:
    """A store with one priced reply and one without a price."""
    path = tmp_path / "unpriced.db"
    odd = {"model": "odd:model", "provider": "odd", "user_id": "ada"}
    unpriced_usage = usage("0").replace(cost_usd=None, pricing_version=UNPRICED)

    async def fill(store: Store) -> None:
        await store.create_session("sess_1", user_id="ada")
        priced = answer_message("Done", **SONNET, usage=usage("3"), user_id="ada")
        await store.append(
            "sess_1", [at(1, text_message("x")), at(1, priced), at(2, answer_message("y", **odd, usage=unpriced_usage))]
        )

    with_store(path, fill)
    return path


def test_unpriced_reply_is_listed_separately_and_never_as_zero(store_with_unpriced_reply: Path) -> None:
    output = run("cost", "--by", "model", store=store_with_unpriced_reply).stdout
    assert "$3.00 for 2 replies" in output
    assert "not included: 1 reply without a price" in output
    assert "$0.00" not in output
    assert ["odd:model", "1", "1,000,000", "0", "0", "unpriced"] in [line.split() for line in output.splitlines()]
    assert "$3.00 + 1 unpriced" in run("stats", store=store_with_unpriced_reply).stdout
    report = run_json("cost", store=store_with_unpriced_reply)
    assert (report["total_usd"], report["unpriced"]) == ("3", 1)
    page = run("show", "sess_1", store=store_with_unpriced_reply).stdout
    assert "tokens · unpriced" in page
    assert "$0.00" not in page


def test_unknown_amount_is_null_in_json(store_with_unpriced_reply: Path) -> None:
    odd = run_json("cost", "--model", "odd:model", store=store_with_unpriced_reply)
    assert (odd["total_usd"], odd["unpriced"]) == (None, 1)
    assert [row["cost_usd"] for row in (*odd["totals"], *odd["days"])] == [None, None]
    both = run_json("cost", "--by", "user", store=store_with_unpriced_reply)
    assert [(row["cost_usd"], row["unpriced"]) for row in both["totals"]] == [("3", 1)]
    totals = {
        row["group"]: (row["cost_usd"], row["unpriced"])
        for row in run_json("stats", store=store_with_unpriced_reply)["totals"]
    }
    assert totals == {"odd:model": (None, 1), SONNET["model"]: ("3", 0)}


def test_numbers_are_not_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    many = usage("123456789.123456").replace(
        input_tokens=987_654_321_012, output_tokens=987_654_321_012, cached_input_tokens=987_654_321_012
    )

    async def fill(store: Store) -> None:
        await store.create_session("sess_1", user_id="ada")
        await store.append(
            "sess_1", [at(1, text_message("x")), at(1, answer_message("Done", **SONNET, usage=many, user_id="ada"))]
        )

    with_store(tmp_path / "store.db", fill)
    for command in ("cost", "stats", "reprice"):
        output = run(command, store=tmp_path / "store.db", env={"COLUMNS": "80"}).stdout
        assert "$123,456,789.123456" in output
        assert "…" not in output
        table = output[output.index("\nmodel ") :].strip().split("\n\n")[0].splitlines()[1:]
        assert "".join(line.split()[0] for line in table) == SONNET["model"]
        if command != "reprice":
            assert table[0].split()[1:] == ["1", *["987,654,321,012"] * 3, "$123,456,789.123456"]


def test_reprice_shows_unpriced_where_an_amount_is_unknown(
    store_with_unpriced_reply: Path, prices: Path, tmp_path: Path
) -> None:
    output = run("reprice", "--prices", prices, store=store_with_unpriced_reply).stdout
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line}
    assert rows["odd:model"] == ["1", "unpriced", "unpriced", "–"]
    assert rows["total"][:6] == ["2", "$3.00", "+", "1", "unpriced", "$2.00"]
    rows_by_model = {
        row["model"]: row for row in run_json("reprice", "--prices", prices, store=store_with_unpriced_reply)["models"]
    }
    odd = rows_by_model["odd:model"]
    assert (odd["was_usd"], odd["was_unpriced"], odd["would_be_usd"], odd["would_be_unpriced"]) == (None, 1, None, 1)
    assert (rows_by_model[SONNET["model"]]["was_usd"], rows_by_model[SONNET["model"]]["was_unpriced"]) == ("3", 0)
    odd_prices = tmp_path / "odd.json"
    rates = {"input_per_mtok_usd": "2", "output_per_mtok_usd": "2"}
    odd_prices.write_text(json.dumps({"pricing_version": "odd", "models": {"odd:model": rates}}), "utf-8")
    (line,) = [
        row
        for row in run("reprice", "--prices", odd_prices, store=store_with_unpriced_reply).stdout.splitlines()
        if "odd:" in row
    ]
    assert line.split()[1:] == ["1", "unpriced", "$2.00", "–"]


def test_reprice_prices_replies_that_had_no_price(store_with_unpriced_reply: Path, tmp_path: Path) -> None:
    rates = {"input_per_mtok_usd": "2", "output_per_mtok_usd": "2"}
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"pricing_version": "odd", "models": {"odd:model": rates}}), "utf-8")
    done = run("reprice", "--prices", file, "--keep", store=store_with_unpriced_reply)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 reply had no price" in done.stdout
    (version,) = with_store(store_with_unpriced_reply, lambda store: store.costs.versions())
    report = run_json("cost", "--prices-version", version, "--model", "odd:model", store=store_with_unpriced_reply)
    assert (report["total_usd"], report["unpriced"]) == ("2", 0)


def test_repair_usage_restores_sums_after_a_forged_row(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = usage("-1000000").replace(input_tokens=2**63 - 1)

    async def poison(store: Store) -> None:
        for _ in range(2):  # their sum does not fit into 64 bits
            await store.append("sess_2", at(3, answer_message("z", **SONNET, usage=forged, user_id="ada")))

    with monkeypatch.context() as patch:
        patch.setattr(message_writer, "check_usage", lambda message: None)
        with_store(file, poison)
    for command in ("cost", "stats"):
        done = run(command, "--user", "ada", store=file)
        assert (done.returncode, done.stderr) == (0, "")
        assert "$4.50" in done.stdout
    result = run("verify", store=file)
    assert result.returncode == 1
    assert "sess_2, message 3  its usage is impossible (input_tokens: 9223372036854775807" in result.stdout
    planned = run("repair-usage", store=file).stdout
    assert "nothing was written; --write repairs 2 usages" in planned
    assert "counted for ada" in planned
    done = run("repair-usage", "--write", store=file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 usages repaired" in done.stdout
    assert run("verify", store=file).stdout.startswith("intact")
    assert run("repair-usage", store=file).stdout == "no impossible usage found\n"
    events = run("trace", "system", "--type", "usage.repaired", "--json", store=file).stdout
    assert events.count("9223372036854775807") >= 2


def test_repair_usage_removes_one_usage_by_message(file: Path) -> None:
    report = run_json("repair-usage", "sess_2", "--message", "2", "--write", store=file)
    assert [change["before"]["cost_usd"] for change in report["repaired"]] == ["0.25"]
    assert run_json("cost", "--user", "grace", store=file)["total_usd"] is None
    expect_error(run("repair-usage", "--message", "2", store=file), "invalid_input")


def test_reprice_is_limited_by_time_and_session(file: Path, prices: Path) -> None:
    (model,) = run_json("reprice", "--prices", prices, "--since", "2026-11-03", store=file)["models"]
    assert (model["calls"], Decimal(model["was_usd"]), Decimal(model["would_be_usd"])) == (
        1,
        Decimal("1.5"),
        Decimal(4),
    )
    assert run_json("reprice", "--prices", prices, "--session", "sess_2", store=file)["models"][0]["without_price"] == 1


# --- trace -----------------------------------------------------------------------------------------------------------


async def write_trace(store: Store) -> None:
    async with Bus(strict=True) as bus:
        TraceWriter(store).listen(bus)
        emit_turn(bus.scope("sess_1", "turn_1"))


def test_trace_is_a_tree_of_causes(file: Path) -> None:
    with_store(file, write_trace)
    done = run("trace", "sess_1", store=file)
    assert (done.returncode, done.stderr) == (0, "")
    head, blank, turn, *events = done.stdout.splitlines()
    assert (head, blank) == ("sess_1  9 events", "")
    assert turn.endswith("  turn turn_1")
    lines = [event[13:] for event in events]
    assert [(len(event) - len(event.lstrip()), event.split()[0]) for event in lines] == [
        (0, "turn.started"),
        (2, "route.decided"),
        (2, "llm.call_started"),
        (4, "llm.call_completed"),
        (6, "tool.called"),
        (8, "tool.completed"),
        (2, "llm.call_started"),
        (4, "llm.call_completed"),
        (2, "turn.completed"),
    ]
    assert "103→20 tokens · $0.0013 · 12 ms · tool_use" in done.stdout
    assert "hunter2" not in done.stdout


def test_trace_is_filtered_and_printed_as_json(file: Path) -> None:
    with_store(file, write_trace)
    report = run_json("trace", "sess_1", "--type", "tool.called", "--type", "tool.completed", store=file)
    assert [event["type"] for event in report["events"]] == ["tool.called", "tool.completed"]
    assert report["events"][1]["parent_event_id"] == report["events"][0]["id"]
    newest = run_json("trace", "sess_1", "--limit", "1", store=file)["events"]
    assert [event["type"] for event in newest] == ["turn.completed"]
    assert run_json("trace", "sess_1", "--turn", "turn_2", store=file)["events"] == []
    (registered,) = run_json("trace", "system", store=file)["events"]
    assert registered["type"] == "bus.subscriber_registered"
    expect_error(run("trace", "sess_9", store=file), "session_not_found")


def test_trace_is_followed(file: Path) -> None:
    environment = {**os.environ, "DRAGOMAN_STORE": str(file), "PYTHONUTF8": "1"}
    with subprocess.Popen(
        [COMMAND, "trace", "sess_1", "--follow", "--json"], env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        with_store(file, write_trace)
        types = [json.loads(process.stdout.readline())["type"] for _ in range(9)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert (types[0], types[-1]) == ("turn.started", "turn.completed")


def test_control_characters_in_events_are_escaped(file: Path) -> None:
    async def emit_control_characters(store: Store) -> None:
        async with Bus(strict=True) as bus:
            TraceWriter(store).listen(bus)
            bus.emit("skill.loaded", {"skill_name": "\x1b[2J\nx"}, session_id="sess_1")

    with_store(file, emit_control_characters)
    done = run("trace", "sess_1", store=file)
    assert "\x1b" not in done.stdout
    assert "skill_name=␛[2J x" in done.stdout


# --- evaluate --------------------------------------------------------------------------------------------------------


def test_last_turn_is_evaluated_and_routing_learns_from_it(file: Path) -> None:
    evaluation = run_json("evaluate", "sess_1", "--score", "0.8", "--notes", "my password=hunter2", store=file)
    assert (evaluation["score"], evaluation["evaluator"], evaluation["turn_id"], evaluation["model"]) == (
        0.8,
        "user",
        "turn_1",
        SONNET["model"],
    )
    assert (Decimal(evaluation["cost_usd"]), evaluation["duration_ms"]) == (Decimal("4.5"), 3_000)
    assert evaluation["notes"] == "my password=[redacted:password]"
    events = run_json("trace", "sess_1", store=file)["events"]
    assert [event["type"] for event in events] == [
        *("eval.started", "eval.completed", "pattern.recorded", "feedback.explicit"),
    ]
    assert {event["turn_id"] for event in events} == {"turn_1"}
    assert (events[1]["payload"]["evaluation_id"], events[3]["payload"]["score"]) == (evaluation["id"], 0.8)
    done = run("evaluate", "sess_1", "--no-success", store=file)
    assert done.stdout.startswith("recorded no success  evl_")

    async def read_learned_values(store: Store) -> tuple[list[Evaluation], list[Any]]:
        return await store.evaluations.find("sess_1"), await store.evaluations.samples()

    found, samples = with_store(file, read_learned_values)
    assert [evaluation.success for evaluation in found] == [False, None]
    (sample,) = samples
    assert (sample.primary_model, sample.success, sample.cost_usd) == (SONNET["model"], 0.0, Decimal("4.5"))
    assert sample.fingerprint.intent_tags == ("fix",)
    assert sample.fingerprint.file_extensions == (".py",)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("sess_1",), "invalid_input"),
        (("sess_1", "--score", "1.5"), "usage"),
        (("sess_9", "--score", "1"), "session_not_found"),
        (("sess_empty", "--score", "1"), "invalid_input"),
        (("sess_asked", "--score", "1"), "invalid_input"),
    ],
)
def test_invalid_evaluation_is_one_error_line(file: Path, arguments: tuple[str, ...], code: str) -> None:
    async def add_sessions(store: Store) -> None:
        await store.create_session("sess_empty")
        await store.create_session("sess_asked")
        await store.append("sess_asked", text_message("Anybody?"))

    with_store(file, add_sessions)
    expect_error(run("evaluate", *arguments, store=file), code)


def test_example_conversation_is_evaluated(tmp_path: Path) -> None:
    messages = example_conversation()

    async def fill(store: Store) -> None:
        await store.create_session(messages[0].session_id)
        await store.append(messages[0].session_id, messages)

    with_store(tmp_path / "store.db", fill)
    evaluation = run_json("evaluate", "last", "--success", store=tmp_path / "store.db")
    assert (evaluation["success"], Decimal(evaluation["cost_usd"])) == (True, Decimal("0.001308"))
    assert datetime.fromisoformat(evaluation["created_at"]) > datetime.now(UTC) - timedelta(minutes=5)
