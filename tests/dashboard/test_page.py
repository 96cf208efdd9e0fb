"""The page in a real browser: what moves, what can be reached by keyboard and on a phone, and what strangers cannot do.

Chromium is needed: `apt install chromium`, or any that Playwright finds.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.dashboard.parts import OTHER, group, made, round_, used
from waggle.core.keys import peer_name
from waggle.core.web import listening
from waggle.dashboard.feed import Feed
from waggle.dashboard.server import app_of
from waggle.node.runfolder import RunFolder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made_ = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made_
        made_.close()


@contextmanager
def served(feed: Feed, port: int = 0) -> Iterator[int]:
    sock = listening("127.0.0.1", port)
    config = uvicorn.Config(app_of(feed), log_level="critical", lifespan="on", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = made(tmp_path / "run")
    for number in range(1, 6):
        round_(folder, number, reward=0.1, heldout={"chain_sum": [number, 10]})
    used(folder)
    group(folder, "What is 2 + 2?", ("4", 1.0), ("5", 0.0), author=OTHER)
    return folder


@pytest.fixture
def page(browser: Browser, folder: RunFolder) -> Iterator[Page]:
    with served(Feed([folder.path.parent])) as port, browser.new_context() as context:
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("svg.swarm")).to_be_visible()
        yield page
        assert faults == []


def test_a_reward_moves_while_one_watches(page: Page, folder: RunFolder) -> None:
    expect(page.locator("svg.swarm")).to_contain_text("0.50")
    expect(page.locator("svg.swarm")).to_contain_text("round 5, not running")
    round_(folder, 6, reward=0.9, heldout={"chain_sum": [9, 10]})
    expect(page.locator("svg.swarm")).to_contain_text("0.90")
    page.get_by_role("link", name="Learning").click()
    expect(page.get_by_role("img", name="held-out: node-1 0.9")).to_be_visible()


def test_a_conversation_is_read(page: Page, folder: RunFolder) -> None:
    page.keyboard.press("4")
    asked = page.locator("article.group", has_text="What is 2 + 2?")
    expect(asked).to_contain_text(f"{peer_name(OTHER)} answered, node-1 read it")
    expect(asked.locator(".answer.right")).to_have_text("✓ 4")
    expect(asked.locator(".answer.wrong")).to_have_text("5")
    group(folder, "What is 3 + 3?", ("7", 0.0))
    expect(page.locator("article.group")).to_have_count(2)
    page.get_by_label("only peers' answers").check()
    expect(page.locator("article.group")).to_have_count(1)


def test_what_strangers_write_stays_text(page: Page, folder: RunFolder) -> None:
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    group(folder, evil, (evil, 1.0))
    used(folder, family=evil, reason=evil)
    page.keyboard.press("4")
    expect(page.locator("article.group", has_text="onerror")).to_have_count(1)
    assert page.locator("main img").count() == 0
    page.keyboard.press("1")
    expect(page.locator(".news")).to_contain_text("onerror")
    assert page.title() == "Waggle"


@pytest.mark.parametrize("view", ["swarm", "learning", "tasks", "talk", "peers", "machine", "settings"])
def test_every_view_fits_a_phone(page: Page, folder: RunFolder, view: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.get_by_role("link", name=view.capitalize()).click()
    expect(page.locator(f"#to-{view}")).to_have_attribute("aria-current", "page")
    expect(page.locator("main > *").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_light_and_dark(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    page.get_by_role("button", name="light or dark").click()
    assert ground() == light
    page.reload()
    assert ground() == light


def test_it_comes_back_when_the_server_does(browser: Browser, folder: RunFolder) -> None:
    feed = Feed([folder.path.parent])
    with browser.new_context() as context:
        page = context.new_page()
        with served(feed) as port:
            page.goto(f"http://127.0.0.1:{port}/")
            expect(page.locator("svg.swarm")).to_contain_text("round 5")
        expect(page.locator("#link")).to_contain_text("trying again")
        round_(folder, 6)
        with served(Feed([folder.path.parent]), port):
            expect(page.locator("svg.swarm")).to_contain_text("round 6", timeout=20_000)
            expect(page.locator("#link")).to_contain_text("0 of 1 running")


def test_ten_thousand_events_leave_the_page_as_small_as_a_thousand(page: Page, folder: RunFolder) -> None:
    def held(first: int, last: int) -> int:
        for number in range(first, last):
            used(folder, detail=f"{number}" + "x" * 100)
        round_(folder, last, reward=last / 10_000)
        expect(page.locator("#view")).to_contain_text(f"round {last},", timeout=30_000)
        counted = "import('/page/state.js').then(m => JSON.stringify([...m.state.nodes.values()]).length)"
        return int(page.evaluate(counted)) + int(page.evaluate("document.querySelectorAll('*').length"))

    few = held(0, 1000)
    assert held(1000, 10_000) < 1.2 * few
