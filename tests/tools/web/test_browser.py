"""The page in a real browser, over a real beat and real workers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from celery import Celery
from playwright.sync_api import Browser, BrowserContext, Page, expect

from supervisor import jobs
from supervisor.app import supervise
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.features.notices import silences
from supervisor.features.summary.rule import Summary
from supervisor.features.summary.store import SummaryStore
from supervisor.job.run import Run, RunState
from supervisor.job.run_ids import ulid
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.web import record
from supervisor.web.access import Access
from tests.acceptance.project import Project
from tests.acceptance.workers import Workers
from tests.conftest import database, emptied
from tests.jobs import at_work, failed, job, run_id, ticks
from tests.ports import free_port
from tests.presence import beat_says
from tests.programs import needs
from tests.tools.web.browser import PHONE, chromium, has_stayed, log_in, stays
from tests.tools.web.visits import TOKEN, serving
from tests.waiting import wait_until

pytestmark = needs("chromium")

JOBS = """
defaults: {paused: true, lease_ttl: 5s}
jobs:
  tells: {task: team.tell, every: 24h}
  works: {task: team.work, every: 24h}
  evil:
    task: team.work
    every: 24h
    description: "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
"""


@pytest.fixture(scope="module")
def workers(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    project = Project(tmp_path_factory.mktemp("page"), database(server.url, 11))
    emptied(project.url)
    project.schedule(JOBS)
    try:
        project.beat()
        project.wait_for_jobs()
        yield Workers(project).staff()
    finally:
        project.stop()


@pytest.fixture(scope="module")
def address(workers: Workers) -> Iterator[str]:
    app = supervise(Celery("team", broker=workers.project.url, set_as_current=False))
    jobs.put("made", app=app, task="team.work", every="24h", paused=True, labels={"tenant": "acme"})
    with app, pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "MOST_LOGINS", 1_000)  # most of these tests log in with one token
        with serving(workers.project.ledger, Access(TOKEN), app=app) as address:
            yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context() as context:
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def gate(workers: Workers) -> Path:
    """What a run of `tells` waits for."""
    return workers.project.directory / f"gate-{ulid()}"


def ended(ledger: Ledger, job: str) -> list[Run]:
    return [run for run in ledger.history(job) if not run.state.is_open]


def test_the_page_shows_a_run_start_and_finish_without_a_reload(
    workers: Workers, address: str, page: Page, gate: Path
) -> None:
    page.goto(address)
    stays(page)
    now = page.locator("[data-part=now]")
    expect(now).to_contain_text("Running 0")
    workers.trigger("tells", str(gate))
    expect(now).to_contain_text("Running 1")
    expect(now).to_contain_text("1/4 (25%) opened")
    row = page.get_by_role("row").filter(has_text="tells")
    expect(row.locator(".state").first).to_have_text("running")
    gate.touch()
    expect(now).to_contain_text("Running 0")
    expect(row).to_contain_text("succeeded")
    assert has_stayed(page)


def test_the_page_of_a_run_shows_its_log_as_it_is_written(
    workers: Workers, address: str, page: Page, gate: Path
) -> None:
    run = workers.trigger("tells", str(gate))
    page.goto(f"{address}/runs/{run.id}")
    stays(page)
    expect(page.locator(".log")).to_contain_text("loaded 17 rows")
    gate.touch()
    expect(page.locator(".log")).to_contain_text("the last line")
    expect(page.locator(".title .state")).to_have_text("succeeded")
    assert has_stayed(page)


def test_a_trigger_from_the_page_is_confirmed_and_runs(
    workers: Workers, address: str, page: Page
) -> None:
    ledger = workers.project.ledger
    before = len(ended(ledger, "works"))
    log_in(page, address, TOKEN)
    page.goto(f"{address}/jobs/works")
    page.get_by_role("link", name="Trigger").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Trigger works?")
    assert len(ledger.history("works")) == before
    dialog.get_by_role("button", name="Trigger").click()
    page.wait_for_url("**/runs/works@manual-*")
    expect(page.locator(".title .state")).to_have_text("succeeded")
    assert len(ended(ledger, "works")) == before + 1


def test_a_dialog_is_left_by_the_keyboard_and_nothing_was_done(
    workers: Workers, address: str, page: Page
) -> None:
    before = len(workers.project.ledger.history("works"))
    log_in(page, address, TOKEN)
    page.goto(f"{address}/jobs/works")
    trigger = page.get_by_role("link", name="Trigger")
    trigger.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert len(workers.project.ledger.history("works")) == before


def test_a_script_in_a_description_is_text(workers: Workers, address: str, page: Page) -> None:
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    for path in ("/", "/jobs/evil"):
        page.goto(address + path)
        expect(page.get_by_text("<script>window.owned = 1</script>").first).to_be_visible()
        assert page.evaluate("window.owned") is None
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'window.owned = 1'}))"
    )
    assert page.evaluate("window.owned") is None
    assert "Content Security Policy" in refused[-1]


@pytest.fixture(scope="module")
def told(workers: Workers) -> Run:
    """A run that has ended, with all that a page shows of one."""
    gate = workers.project.directory / "open"
    gate.touch()
    run = workers.trigger("tells", str(gate))
    ledger = workers.project.ledger
    return wait_until(lambda: [each for each in ended(ledger, "tells") if each.id == run.id], 30)[0]


def test_a_job_is_made_as_text_that_is_checked_while_it_is_typed(address: str, page: Page) -> None:
    log_in(page, address, TOKEN)
    page.get_by_role("link", name="New job").click()
    stays(page)
    text, result = page.get_by_label("The job, as in"), page.locator("[data-result]")
    text.fill("jobs:\n  typed:\n    task: team.work\n    every: 24x\n    paused: true\n")
    expect(result).to_contain_text("Line 4: 'every': '24x' is not a duration")
    expect(page.locator(".numbers .failed")).to_have_text("4")
    text.fill("jobs:\n  typed:\n    task: team.work\n    every: 24h\n    paused: true\n")
    expect(result.locator(".ticks li")).to_have_count(5)
    expect(result).to_contain_text(re.compile("workers? consumes? it"))
    expect(page.locator(".numbers .failed")).to_have_count(0)
    assert has_stayed(page)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_have_text("typed")
    expect(page.locator("[data-part=job]")).to_contain_text("by token (the status page)")
    page.get_by_role("link", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove the job").click()
    page.wait_for_url(f"{address}/")
    expect(page.get_by_role("link", name="typed")).to_have_count(0)


def test_what_is_in_use_stays_while_the_page_is_refreshed(
    workers: Workers, address: str, page: Page
) -> None:
    ledger = workers.project.ledger
    page.goto(address)
    stays(page)
    page.get_by_label("Find a job by name").fill("half a na")
    page.locator("body").click(position={"x": 1, "y": 1})
    ledger.pause("made", "for the test")
    for _ in range(2):
        page.wait_for_event("response")
    expect(page.get_by_label("Find a job by name")).to_have_value("half a na")
    assert has_stayed(page)
    ledger.resume("made")
    page.goto(f"{address}/jobs/made")
    page.locator("details.keys summary").click()
    page.get_by_role("link", name="tenant=acme").focus()
    ledger.pause("made", "for the test")
    expect(page.locator(".about-job")).to_contain_text("for the test")
    expect(page.locator("details.keys pre")).to_be_visible()
    assert page.evaluate("document.activeElement.textContent") == "tenant=acme"


#: Where the rows of jobs have been, from the top of the page, each time that it changed.
WATCH = """() => {
  window.tops = {};
  const look = () => {
    for (const row of document.querySelectorAll("table tr[data-row]"))
      (tops[row.dataset.row] ??= new Set()).add(row.getBoundingClientRect().top + scrollY);
  };
  new MutationObserver(look).observe(document, {childList: true, subtree: true});
  look();
}"""

TOPS = "() => Object.fromEntries(Object.entries(tops).map(([name, all]) => [name, all.size]))"


@pytest.fixture
def calm(server: EmbeddedServer) -> Iterator[tuple[Ledger, str]]:
    """A ledger in which nothing happens by itself, and the address of its page."""
    url = database(server.url, 13)
    emptied(url)
    ledger = Ledger.open(Settings(url))
    with serving(ledger, Access(TOKEN)) as address:
        yield ledger, address


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_rows_of_jobs_stay_where_they_are_whatever_happens(
    calm: tuple[Ledger, str], page: Page, width: int
) -> None:
    ledger, address = calm
    a, b, d = (job(ledger, name, overlap="queue_all", every="24h") for name in "abd")
    for name in "ce":
        job(ledger, name, every="24h", labels={"team": "reports"}, description="Its purpose.")
    page.set_viewport_size({"width": width, "height": 800})
    log_in(page, address, TOKEN)
    page.evaluate(WATCH)
    status, rows = page.locator(".panel").first, page.locator("table tr[data-row]")
    problems = [f"schedules/a.yaml, line {n}: 'evry' is not a key of a job" for n in range(20)]
    beat_says(ledger, problems=json.dumps(problems), last_reload_successful=0)
    expect(status).to_contain_text("line 19")
    SummaryStore(ledger).save(A_DAY)
    expect(status).to_contain_text("Slower than usual")
    silences.silence(ledger, duration=timedelta(days=1), by=Actor("ann", "cli"), reason="a move")
    expect(status).to_contain_text("a move")
    at_work(ledger, a, 0)
    ledger.admit(ticks(a, 1, 2, 3))
    expect(rows.nth(0)).to_contain_text("3 waiting")
    for second in range(3):
        at_work(ledger, b, second)
        ledger.finish(run_id(b, second), "token", RunState.FAILED, "ValueError: " + "no " * 200)
    expect(rows.nth(1)).to_contain_text("3 times in a row")
    ledger.pause("c", "the share moves to another filer, and so do all that write to it, today")
    expect(rows.nth(2)).to_contain_text("another filer")
    ledger.pause("b", "until it is mended")
    expect(rows.nth(1)).to_contain_text("until it is mended")
    for second in range(120):
        at_work(ledger, d, second)
        ledger.finish(run_id(d, second), "token", RunState.SUCCEEDED)
    expect(rows.nth(3)).to_contain_text("median")
    ledger.resume("c")
    expect(rows.nth(2)).not_to_contain_text("another filer")
    ledger.finish(run_id(a, 0), "token", RunState.SUCCEEDED)
    expect(rows.nth(0)).to_contain_text("2 waiting")
    assert page.evaluate(TOPS) == dict.fromkeys("abcde", 1)


@pytest.mark.parametrize("way", ["pointer", "focus"])
def test_rows_of_jobs_keep_their_order_while_one_is_among_them(
    calm: tuple[Ledger, str], page: Page, way: str
) -> None:
    ledger, address = calm
    for name in "abc":
        job(ledger, name, every="24h")
    page.goto(f"{address}/?sort=state")
    rows = page.locator("table tr[data-row]")
    if way == "pointer":
        rows.nth(1).hover()
    else:
        rows.nth(1).get_by_role("link", name="b", exact=True).focus()
    failed(ledger, ledger.spec("c"), 0)
    expect(rows.nth(2)).to_contain_text("failing")
    assert [row.get_attribute("data-row") for row in rows.all()] == ["a", "b", "c"]
    if way == "pointer":
        page.mouse.move(1, 1)
    else:
        page.get_by_role("button", name="Find").focus()
    expect(rows.nth(0)).to_contain_text("failing")


def test_what_is_ticked_stays_and_is_paused_under_one_reason(
    workers: Workers, address: str, page: Page
) -> None:
    ledger = workers.project.ledger
    names = [job(ledger, name, every="24h").name for name in ("ticked", "ticked-too", "other")]
    log_in(page, address, TOKEN)
    page.goto(f"{address}/?search=t")
    for name in names[:2]:
        page.get_by_label(f"Choose {name}", exact=True).check()
    ledger.pause("other")
    for _ in range(2):
        page.wait_for_event("response")
    expect(page.get_by_label("Choose ticked-too")).to_be_checked()
    page.get_by_role("form", name="Act on several jobs").get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("the move")
    page.get_by_role("button", name="Pause").click()
    page.wait_for_url(f"{address}/./?search=t")
    assert [ledger.job(name).paused_note for name in names] == ["the move", "the move", None]


def test_a_group_of_failures_is_run_again_in_three_clicks(
    workers: Workers, address: str, page: Page
) -> None:
    ledger = workers.project.ledger
    run = failed(ledger, job(ledger, "broken", every="24h", queue="nowhere"), 0)
    log_in(page, address, TOKEN)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Failures").click()
    row = page.get_by_role("row").filter(has_text="broken")
    row.get_by_role("link", name="Run again").click()
    page.get_by_role("button", name="Run again").click()
    page.wait_for_url(f"{address}/failures")
    expect(row.get_by_role("link", name="Run again")).to_have_count(0)
    [again] = ledger.run(run).repeated_by
    assert ledger.run(again).state is RunState.QUEUED


def test_a_click_on_a_label_lists_the_jobs_that_have_it(address: str, page: Page) -> None:
    page.goto(address)
    page.get_by_role("link", name="tenant=acme").click()
    expect(page.locator("td.head")).to_have_count(1)
    page.get_by_role("link", name="label tenant=acme").click()
    expect(page.get_by_role("link", name="tells", exact=True)).to_be_visible()


ON_A_PHONE = (
    *("/", "/timeline", "/jobs/tells", "/jobs/made", "/queues", "/record", "/login", "/runs/{run}"),
    *("/actions/backfill/works?from=2026-03-01&to=2026-03-03",),
    *("/actions/new", "/actions/edit/made", "/failures", "/actions/bulk?of=jobs&verb=pause&all=1"),
)


@pytest.mark.parametrize("path", ON_A_PHONE)
def test_a_phone_shows_all_of_it_without_scrolling_sideways(
    address: str, browser: Browser, told: Run, path: str
) -> None:
    with browser.new_context(viewport=PHONE, is_mobile=True, has_touch=True) as context:  # type: ignore[arg-type]
        page = context.new_page()
        log_in(page, address, TOKEN)
        page.goto(address + path.replace("{run}", told.id))
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_the_list_fits_a_narrow_window(workers: Workers, address: str, page: Page) -> None:
    for visit in (lambda: page.goto(address), lambda: log_in(page, address, TOKEN)):
        visit()
        expect(page.locator("td.head").first).to_be_visible()
        widths = {}
        for width in (600, 760, 800, 980, 981, 1100):
            page.set_viewport_size({"width": width, "height": 800})
            widths[width] = page.evaluate("document.documentElement.scrollWidth")
        assert widths == {width: width for width in widths}


PAGES = (
    *("/", "/?state=late&sort=next", "/failures", "/queues", "/record", "/login", "/jobs/tells"),
    *(
        "/timeline",
        "/timeline?reach=1h",
        "/jobs/unknown",
        "/runs/{run}",
        "/runs/{failed}",
        "/actions/trigger/works",
    ),
    *("/actions/cancel/{run}", "/actions/new", "/actions/edit/made", "/jobs/made"),
    *("/actions/retry/{failed}", "/actions/bulk?of=jobs&verb=pause&all=1"),
    *("/actions/backfill/works?from=2026-03-01&to=2026-03-03", "/runs/{failed}?find=x"),
    *("/actions/bulk?of=failures&verb=retry&all=1",),
    *("/actions/silence/", "/actions/silence/made", "/actions/unsilence/made"),
)

A_DAY = Summary(
    date=date(2026, 3, 1),
    zone="Europe/Berlin",
    failed=3,
    late=1,
    slower=1,
    skipped=14,
    missed=0,
    failing={"works": 3},
    slow={"tells": 2.1},
    jobs=3,
    partial=1,
)

#: Where nothing has happened yet, or nothing matches.
EMPTY = ("/", "/timeline", "/failures", "/queues", "/record", "/?state=failing", "/jobs/unknown")


#: Numbers what the keyboard is to reach, and counts it.
NUMBER = """() => {
  const found = [...document.querySelectorAll("a[href], button, input, select, summary, textarea")]
    .filter((one) => one.checkVisibility() && one.type !== "hidden" && one.tabIndex >= 0);
  found.forEach((one, number) => { one.dataset.number = number; });
  return found.length;
}"""

FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  return [one.dataset.number ?? "", style.outlineStyle, one.outerHTML.slice(0, 200)];
}"""

#: In the dark the pages differ by their colours alone.
RULES: dict[str, dict[str, object]] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]},
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    address: str,
    nothing: str,
    browser: Browser,
    in_every_state: JobSpec,
    scheme: Literal["light", "dark"],
) -> None:
    names = {"run": run_id(in_every_state, 20), "failed": run_id(in_every_state, 1)}
    seen: list[str] = []
    with browser.new_context(color_scheme=scheme, bypass_csp=True) as context:
        page = context.new_page()
        log_in(page, address, TOKEN)
        pages = [address + path.format(**names) for path in PAGES]
        for path in [*pages, *(nothing + path for path in EMPTY)]:
            page.goto(path)
            page.wait_for_load_state("load")
            for violation in Axe().run(page, options=RULES[scheme]).response["violations"]:
                nodes = [node["html"][:200] for node in violation["nodes"]]
                seen.append(f"{path}: {violation['id']}: {nodes}")
    assert seen == []


@pytest.fixture(scope="module")
def nothing(server: EmbeddedServer) -> Iterator[str]:
    """The address of a page where nothing has happened yet."""
    url = database(server.url, 12)
    emptied(url)
    with serving(Ledger.open(Settings(url)), Access(TOKEN)) as address:
        yield address


def test_the_keyboard_reaches_everything_and_shows_where_it_is(address: str, page: Page) -> None:
    log_in(page, address, TOKEN)
    page.add_init_script("fetch = () => new Promise(() => {})")  # nothing is replaced meanwhile
    missed, unseen = [], set()
    paths = ("/", "/timeline", "/jobs/works", "/queues", "/record", "/actions/new", "/failures")
    for path in (*paths, "/actions/bulk?of=jobs&verb=pause&all=1"):
        page.goto(address + path)
        count = page.evaluate(NUMBER)
        left = {str(number) for number in range(count)}
        for _ in range(8 * count):  # a time has several fields, and what scrolls is reached as well
            page.keyboard.press("Tab")
            number, outline, text = page.evaluate(FOCUSED)
            left.discard(number)
            if number and outline == "none":
                unseen.add((path, text))
            if not left:
                break
        missed += [(path, page.locator(f"[data-number='{n}']").inner_html()) for n in left]
    assert (missed, unseen) == ([], set())


@pytest.fixture(scope="module")
def in_every_state(workers: Workers) -> JobSpec:
    """A job with a run in each state that has a colour of its own."""
    ledger = workers.project.ledger
    spec = job(ledger, "in-every-state", overlap="queue_one", task="team.unknown", queue="nowhere")
    ends = (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT)
    for second, outcome in enumerate(ends):
        at_work(ledger, spec, second)
        ledger.finish(run_id(spec, second), "token", outcome, f"it {outcome.value}")
    ledger.admit(ticks(spec, 10))
    ledger.cancel(run_id(spec, 10), "enough")
    ledger.admit(ticks(spec, 20, 21, 22))
    ledger.pause(spec.name, "for a reason")
    SummaryStore(ledger).save(A_DAY)
    by = Actor("ann", "cli")
    silences.silence(ledger, "made", duration=timedelta(days=1), by=by, reason="an upgrade")
    return spec


def test_the_list_is_searched_while_one_types(address: str, page: Page) -> None:
    page.goto(address)
    stays(page)
    page.keyboard.press("/")
    page.keyboard.type("tel")
    expect(page.locator("td.head")).to_have_count(1)
    assert page.url.endswith("/?search=tel")
    page.keyboard.type("x")
    expect(page.get_by_text("No job matches.")).to_be_visible()
    expect(page.get_by_label("Find a job by name")).to_have_value("telx")
    assert has_stayed(page)


@pytest.mark.parametrize("path", ["/timeline", "/jobs/works"])
def test_the_lines_of_a_timeline_are_where_its_marks_are(
    address: str, page: Page, path: str
) -> None:
    for width in (1280, PHONE["width"]):
        page.set_viewport_size({**PHONE, "width": width})
        page.goto(f"{address}{path}")
        lines = page.locator(".grids").bounding_box()
        marks = page.locator(".lane:not(.axis) > svg").first.bounding_box()
        assert lines
        assert marks
        for side in ("x", "width"):
            assert lines[side] == pytest.approx(marks[side], abs=1.5)


def test_the_timeline_is_zoomed_moved_and_searched_by_keys(address: str, page: Page) -> None:
    page.goto(f"{address}/timeline")
    for key, address_after in (
        ("-", "**/timeline?reach=7d"),
        ("+", "**/timeline?"),
        ("+", "**/timeline?reach=6h"),
        ("ArrowLeft", "**/timeline?reach=6h&at=*"),
        ("0", "**/timeline?reach=6h"),
    ):
        page.keyboard.press(key)
        page.wait_for_url(address_after)
    page.keyboard.press("/")
    page.keyboard.type("tel-")
    expect(page.get_by_label("Find a job by name")).to_have_value("tel-")
    page.keyboard.press("Enter")
    page.wait_for_url("**/timeline?reach=6h&search=tel-")
    expect(page.get_by_text("No job matches.")).to_be_visible()


def test_times_change_to_the_zone_of_the_browser_and_back(address: str, browser: Browser) -> None:
    with browser.new_context(timezone_id="Asia/Tokyo") as context:
        page = context.new_page()
        page.goto(f"{address}/timeline")
        legend = page.locator(".legend")
        expect(legend).to_contain_text("times in UTC")
        page.get_by_role("button", name="UTC").click()
        expect(legend).to_contain_text("times in Asia/Tokyo")
        page.get_by_role("button", name="Asia/Tokyo").click()
        expect(legend).to_contain_text("times in UTC")


def test_the_page_goes_on_when_its_server_is_back(workers: Workers, page: Page, gate: Path) -> None:
    ledger, port = workers.project.ledger, free_port()
    with serving(ledger, Access(), port) as address:
        page.goto(address)
        stays(page)
    expect(page.get_by_role("status")).to_have_text("No connection, trying again")
    run = workers.trigger("tells", str(gate))
    wait_until(lambda: workers.starts(run), 20)
    with serving(ledger, Access(), port):
        expect(page.locator("[data-part=now]")).to_contain_text("Running 1")
        expect(page.get_by_role("status")).to_be_hidden()
        gate.touch()
        expect(page.locator("[data-part=now]")).to_contain_text("Running 0")
    assert has_stayed(page)
