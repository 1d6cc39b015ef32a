"""Letters for the mail page: a release that four agents work on, sent through the mail of a real server.

    await send_letters(site)          letters that are ready, leased, held, retried and dead, and a request for input
    await record_scores(site)         results with scores over ten days, of two agents and two models
    await send_linked_letter(site)    a session, and a letter that links to it

Invariant: every letter is sent through the mail API. Only the store's clock is set back for older letters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from dragoman.letters import error_letter, needs_input_letter, task_result_letter
from dragoman.mail import Mail
from tests.fake_providers import call_part
from tests.web.site import Site

OUTPUT: Final = "Lantern 1.3 is built: 214 files, 3.1 MB, and every test passes."
SECRET: Final = "correct-horse-battery"
BROKEN: Final = (
    b'{"type": "task_result", "sender_id": "BUILDER", "recipient_id": "TESTER", "task_id": "TASK-9", "payload"'
)


def _mail(site: Site) -> Mail:
    return site.state.mail


def _header(site: Site, sender: str, recipient: str, task: str, **fields: Any) -> dict[str, Any]:
    now = site.state.store.clock()
    return {"sender_id": sender, "recipient_id": recipient, "task_id": task, "timestamp": now, **fields}


async def send_letters(site: Site) -> None:
    """Send letters in every state."""
    mail = _mail(site)
    await mail.send(
        task_result_letter(
            **_header(site, "BUILDER", "TESTER", "TASK-12"),
            output=OUTPUT,
            score=0.92,
            success=True,
            duration_sec=84.2,
            notes="Two warnings of the compiler are left.",
            artifacts=[{"type": "archive", "path": "dist/lantern-1.3.tar.gz", "description": "What is released"}],
        )
    )
    (delivery,) = await mail.receive("TESTER")
    await delivery.ack()
    await mail.send(
        error_letter(
            **_header(site, "TESTER", "BUILDER", "TASK-12"),
            code="TESTS_FAILED",
            message="Two of 214 tests fail on ARM: the lamp stays on.",
            details={"suite": "hardware", "failed": ["test_dusk", "test_dawn"]},
            retryable=True,
            suggested_actions=["rebuild", "skip_arm"],
        )
    )
    await mail.send(
        needs_input_letter(
            **_header(site, "BUILDER", "HUMAN", "TASK-12"),
            about="The release has to be signed before it can go out.",
            requested_inputs=[
                {"id": "password", "type": "string", "description": "Password of the signing key", "sensitive": True},
                {"id": "channel", "type": "enum", "description": "Where to", "options": ["stable", "preview"]},
                {
                    "id": "after_min",
                    "type": "number",
                    "description": "Minutes to wait",
                    "required": False,
                    "default": 5,
                },
            ],
        )
    )
    await _send_other_states(site)


async def _send_other_states(site: Site) -> None:
    mail = _mail(site)
    await mail.send(
        task_result_letter(
            **_header(site, "BUILDER", "REVIEWER", "TASK-13", depends_on=["TASK-14"]), output="Notes of the release"
        )
    )
    await mail.send(task_result_letter(**_header(site, "PLANNER", "TESTER", "TASK-15"), output="A plan of the tests"))
    await mail.receive("TESTER", lease_s=600)
    await mail.send(task_result_letter(**_header(site, "PLANNER", "BUILDER", "TASK-16"), output="A plan of the build"))
    for leased in await mail.receive("BUILDER"):
        if leased.letter.task_id == "TASK-16":
            await leased.nack("The disk quota is reached", retry_after_s=900)
        else:
            await mail.release(leased)
    await mail.send(
        task_result_letter(**_header(site, "PLANNER", "REVIEWER", "TASK-17"), output="Please look at the design")
    )
    (delivery,) = await mail.receive("REVIEWER")
    await delivery.nack("There is no design in it", error_class="not_retryable")
    await mail.accept(BROKEN)


async def record_scores(site: Site) -> None:
    """Record evaluations of two agents over ten days."""
    mail = _mail(site)
    for day in range(10):
        with _set_clock_back(site, timedelta(days=9 - day, hours=2)):
            for number, (agent, model) in enumerate((("BUILDER", "anthropic:sonnet"), ("TESTER", "gemini:flash"))):
                score = min(1.0, 0.52 + 0.045 * day + 0.06 * ((day * 7 + number * 3) % 4 - 1.5))
                await mail.send(
                    task_result_letter(
                        **_header(site, agent, "PLANNER", f"TASK-{100 + 2 * day + number}"),
                        output="done" if score >= 0.6 else "not done",
                        status="success" if score >= 0.6 else "failed",
                        success=score >= 0.6,
                        score=round(score, 2),
                        duration_sec=40 + 9 * ((day * 5 + number) % 7),
                    )
                )
                await site.state.store.evaluations.record(
                    score=round(score - 0.05, 2), success=score >= 0.6, evaluator="REVIEWER", agent_id=agent,
                    model=model, duration_ms=60_000.0 + 9_000 * ((day * 3 + number) % 5), task_id=f"TASK-{100 + 2 * day + number}",
                )  # fmt: skip


@contextlib.contextmanager
def _set_clock_back(site: Site, ago: timedelta) -> Iterator[None]:
    store = site.state.store
    clock = store.clock

    def earlier() -> datetime:
        return clock() - ago

    store.clock = earlier
    yield
    store.clock = clock


async def send_linked_letter(site: Site) -> str:
    """Run a session and send a letter that links to it. Return the id of the session."""
    store = site.state.store
    session = await store.create_session(user_id="local", title="What is Lantern?")
    site.fakes["anthropic"].answer_with(call_part("read_file", {"path": "README.md"}))
    site.fakes["anthropic"].reply("A **lantern** is lit with `lantern on`.")
    await site.state.agent.run(session.id, "What does the README say?")
    await _mail(site).send(
        task_result_letter(
            **_header(site, "WRITER", "REVIEWER", "TASK-21", session_id=session.id),
            output="The README says how a lantern is lit.",
            score=0.88,
            success=True,
        )
    )
    return session.id
