"""The web page in headless Chromium: first visit, frames per second while an answer streams, and deep links.

Bytes are those of the network, compressed, with headers. Time to interactive is the time from the navigation to a
message field that has the focus and a known model. Frames are counted with requestAnimationFrame while an answer of 400
chunks arrives. Deep links open random messages of the longest conversation. The provider is a fake on loopback. Frames
and times depend on what else the machine does; the CPU time of the page's main thread does not: 60 frames per second
leave 16.7 ms for one frame.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import Browser, CDPSession, Page, async_playwright
from rich.console import Console
from rich.table import Table

from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.store.types import LOCAL_USER
from tests.web.site import Site, open_site

MAX_BYTES = 150_000
_BATCH = 500
_WORDS = "A **lantern** is a lamp in a case, with `glass` on its sides. "
_READY = (
    "document.activeElement?.id === 'words' && !/…/.test(document.querySelector('.model-button')?.textContent ?? '…')"
)
_COUNT_FRAMES = """() => {
  window.frames_ = [];
  const count = (time) => { window.frames_.push(time); window.isCounting && requestAnimationFrame(count); };
  window.isCounting = true;
  requestAnimationFrame(count);
}"""


class Visit(NamedTuple):
    """The first visit of a browser."""

    bytes: int
    requests: int
    interactive_ms: float


class Frames(NamedTuple):
    """Frames while an answer streams."""

    per_second: float
    longest_ms: float
    cpu_ms: float  # of the main thread, for one frame


class DeepLink(NamedTuple):
    """Opening one message."""

    ms: float
    requests: int  # of the API, for messages
    cpu_ms: float  # of the main thread


async def measure_first_visit(browser: Browser, url: str) -> Visit:
    """Return the size and the time of a first visit."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    await session.send("Network.enable")
    await page.goto(f"{url}/")
    await _wait(page, _READY)
    interactive_ms = await page.evaluate("performance.now()")
    await page.wait_for_load_state("networkidle")
    await context.close()
    return Visit(round(sum(sizes)), len(sizes), interactive_ms)


async def _wait(page: Page, condition: str) -> None:
    async with asyncio.timeout(60):
        while not await page.evaluate(condition):
            await asyncio.sleep(0.005)


async def _watch_cpu(page: Page) -> CDPSession:
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return session


async def _cpu_ms(session: CDPSession) -> float:
    """The CPU time that tasks of the main thread have taken so far."""
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration") * 1000


async def make_thread(server: Site, length: int) -> str:
    """Store a conversation with this many messages."""
    store = server.state.store
    session = await store.create_session(user_id=LOCAL_USER, title=f"{length} messages")
    for start in range(0, length, _BATCH):
        stop = min(start + _BATCH, length)
        await store.append(session.id, [_message(number) for number in range(start, stop)])
    return session.id


def _message(number: int) -> Message:
    role = Role.ASSISTANT if number % 2 else Role.USER
    metadata = MessageMetadata(
        message_id=f"m-{number + 1}", model="anthropic:claude-sonnet-5-5" if number % 2 else None
    )
    text = f"Message {number + 1}. " + _WORDS * (1 + number % 7)
    return Message("", "", role, (TextBlock(text),), metadata, datetime(2026, 3, 13, tzinfo=UTC))


async def measure_frames(browser: Browser, server: Site, thread: str | None, chunks: int) -> Frames:
    """Return the frames per second while an answer arrives in a conversation."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    await page.goto(f"{server.base_url}/#/{'' if thread is None else f'thread/{thread}'}")
    await page.wait_for_selector("#words")
    if thread is not None:
        await page.wait_for_selector(".answer")
    server.fakes["anthropic"].reply(_WORDS * (chunks // 8) + "\n\nThe end.")
    server.paces["anthropic"].pause_s = 0.01
    await page.fill("#words", "Tell me about lanterns")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#m-live", timeout=120_000)
    session = await _watch_cpu(page)
    before_ms = await _cpu_ms(session)
    await page.evaluate(_COUNT_FRAMES)
    await page.locator(".answer").get_by_text("The end.").wait_for(timeout=120_000)
    times: list[float] = await page.evaluate("(window.isCounting = false, window.frames_)")
    cpu_ms = await _cpu_ms(session) - before_ms
    server.paces["anthropic"].pause_s = 0.0
    await context.close()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return Frames(1000 / statistics.mean(gaps), max(gaps), cpu_ms / len(times))


async def measure_deep_link(browser: Browser, server: Site, thread: str, number: int) -> DeepLink:
    """Return the time until a message is shown, and the requests for messages."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    await page.goto(f"{server.base_url}/#/")
    await _wait(page, _READY)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/messages" in request.url else None)
    session = await _watch_cpu(page)
    before_ms = await _cpu_ms(session)
    start = await page.evaluate("performance.now()")
    await page.evaluate(f"location.hash = '#/thread/{thread}?at=m-{number}&seq={number}'")
    await _wait(page, f"document.activeElement?.id === 'm-m-{number}'")
    taken = await page.evaluate("performance.now()") - start
    cpu_ms = await _cpu_ms(session) - before_ms
    await context.close()
    return DeepLink(taken, len(asked), cpu_ms)


async def measure(lengths: list[int], links: int, chunks: int) -> None:
    """Measure and print everything."""
    console = Console()
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("The benchmark needs Chromium. Install the package chromium.")
    with tempfile.TemporaryDirectory() as folder:
        async with open_site(Path(folder)) as server, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            visit = await measure_first_visit(browser, server.base_url)
            verdict = "within" if visit.bytes <= MAX_BYTES else "above"
            console.print(
                f"first visit: {visit.bytes:,} bytes ({verdict} {MAX_BYTES:,}), {visit.requests} requests, "
                f"interactive after {visit.interactive_ms:.0f} ms"
            )
            columns = ("messages", "frames per second", "longest frame, ms", "CPU per frame, ms")
            table = Table(*columns, title="While an answer streams")
            threads = {length: await make_thread(server, length) for length in lengths if length}
            for length in lengths:
                frames = await measure_frames(browser, server, threads.get(length), chunks)
                table.add_row(
                    f"{length:,}", f"{frames.per_second:.1f}", f"{frames.longest_ms:.0f}", f"{frames.cpu_ms:.1f}"
                )
            console.print(table)
            longest = max(lengths)
            numbers = random.Random(7).sample(range(1, longest + 1), links)
            results = [await measure_deep_link(browser, server, threads[longest], number) for number in numbers]
            console.print(f"any of {longest:,} messages: {describe_links(results)}")
            await browser.close()


def describe_links(results: list[DeepLink]) -> str:
    """Return the times and requests of deep links in words."""
    times = sorted(result.ms for result in results)
    requests = max(result.requests for result in results)
    median = statistics.median(times)
    cpu_ms = max(result.cpu_ms for result in results)
    return (
        f"median {median:.0f} ms, slowest {times[-1]:.0f} ms, at most {cpu_ms:.0f} ms of them CPU of the page, "
        f"at most {requests} requests for messages"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[0, 2_000, 20_000])
    parser.add_argument("--links", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=400)
    options = parser.parse_args()
    asyncio.run(measure(options.messages, options.links, options.chunks))


if __name__ == "__main__":
    main()
