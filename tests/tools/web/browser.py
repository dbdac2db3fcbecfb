"""The machine's own Chromium, driven; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.programs import needed
from tests.waiting import scaled

#: Without these it asks hosts of its maker for things.
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

PHONE = {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needed("chromium"), args=list(QUIET), timeout=1000 * scaled(30)
        )
        try:
            browser.on("context", be_patient)
            expect.set_options(timeout=1000 * scaled(15))
            yield browser
        finally:
            browser.close()


def be_patient(context: BrowserContext) -> None:
    context.set_default_timeout(1000 * scaled(30))


def stays(page: Page) -> None:
    """Marks the page, so that `has_stayed` knows whether it was loaded again."""
    page.evaluate("window.hasStayed = true")


def has_stayed(page: Page) -> bool:
    return bool(page.evaluate("window.hasStayed === true"))


def log_in(page: Page, address: str, token: str) -> None:
    page.goto(f"{address}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{address}/")
