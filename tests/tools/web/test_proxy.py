"""Single sign-on behind the nginx of docs/how-to/access.md: TLS, below a path, in a browser."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from supervisor.ledger.actions import ActionQuery
from supervisor.ledger.ledger import Ledger
from supervisor.web.access import Access
from supervisor.web.access_file import AccessFile, digest
from tests.jobs import job
from tests.ports import free_port
from tests.programs import needed, output_of
from tests.tools.web.access_files import SECRET
from tests.tools.web.browser import chromium
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, serving
from tests.waiting import scaled, wait_until

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "access.md"

FILE = f"""\
proxy:
  hash: "sha256:{digest(SECRET)}"
  sign_out: /oauth2/sign_out
  people:
    - {{user: eve@example.com, role: editor}}
    - {{group: operations, role: operator}}
    - {{user: "*", role: viewer}}
"""

CURVE = ("-pkeyopt", "ec_paramgen_curve:prime256v1")

NGINX = """\
daemon off;
master_process off;
pid {directory}/pid;
error_log {directory}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    ssl_certificate {directory}/crt;
    ssl_certificate_key {directory}/key;
{server}
}}
"""

#: Of people who have signed in: the cookie's value -> groups.
GROUPS = {"ada@example.com": "staff,operations", "bob@example.com": "staff"}


class SignIn(BaseHTTPRequestHandler):
    """What oauth2-proxy answers to nginx; whoever asks may sign in as anybody."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        user = re.sub(r".*_oauth2_proxy=([^;]*).*|.*", r"\1", self.headers.get("Cookie", ""))
        cookie = {"/oauth2/start": f"{query}; Secure; HttpOnly", "/oauth2/sign_out": "; Max-Age=0"}
        if path == "/oauth2/auth":
            self.send_response(202 if user in GROUPS else 401)
            self.send_header("X-Auth-Request-Email", user)
            self.send_header("X-Auth-Request-Groups", GROUPS.get(user, ""))
        elif path in cookie:
            self.send_response(302)
            self.send_header("Set-Cookie", f"_oauth2_proxy={cookie[path]}; Path=/")
            self.send_header("Location", "/supervisor/")
        else:
            self.send_response(403)
        self.end_headers()
        if path == "/oauth2/sign_in":
            self.wfile.write(b'<a href="/oauth2/start?ada@example.com">Sign in</a>')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def sign_in() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SignIn) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def own_address(ledger: Ledger, tmp_path: Path) -> Iterator[str]:
    """Of the server, which nobody but the proxy should ask."""
    path = tmp_path / "access.yaml"
    path.write_text(FILE)
    job(ledger)
    access = Access(TOKEN, is_local=False, file=AccessFile(path), prefix="/supervisor")
    with serving(ledger, access) as address:
        yield address


@pytest.fixture
def address(own_address: str, sign_in: int, tmp_path: Path) -> Iterator[str]:
    """Of the page behind nginx."""
    directory, port = tmp_path / "nginx", free_port()
    directory.mkdir()
    [server] = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.S)
    for said, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("http://127.0.0.1:9809", own_address),
        ("http://127.0.0.1:4180", f"http://127.0.0.1:{sign_in}"),
        ('"sup_..."', f'"{SECRET}"'),
    ):
        assert said in server
        server = server.replace(said, here)
    subject = ("-subj", "/CN=127.0.0.1", "-keyout", directory / "key", "-out", directory / "crt")
    output_of("openssl", "req", "-x509", "-newkey", "ec", "-nodes", *CURVE, *subject)
    (directory / "conf").write_text(NGINX.format(directory=directory, server=server))
    nginx = subprocess.Popen([needed("nginx"), "-c", directory / "conf", "-p", directory])
    try:
        address = f"https://127.0.0.1:{port}/supervisor"
        wait_until(lambda: answers(address))
        yield address
    finally:
        nginx.kill()
        nginx.wait()


def answers(address: str) -> bool:
    try:
        return bool(httpx.get(f"{address}/", verify=False, timeout=scaled(5)).status_code)
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def browsers() -> Iterator[Page]:
    needed("chromium")
    with chromium() as browser, browser.new_context(ignore_https_errors=True) as context:
        yield context.new_page()


def test_a_person_signs_in_at_the_proxy_and_acts_by_name(
    address: str, ledger: Ledger, browsers: Page
) -> None:
    page = browsers
    page.goto(f"{address}/jobs/nightly")
    page.get_by_role("link", name="Sign in").click()
    page.wait_for_url(f"{address}/")
    expect(page.locator(".who")).to_have_text("ada@example.com")
    page.get_by_role("link", name="nightly").click()
    expect(page.get_by_role("link", name="Edit")).to_have_count(0)
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".title")).to_contain_text("paused")
    assert page.url == f"{address}/jobs/nightly"
    [entry] = ledger.actions.search(ActionQuery(limit=1))
    assert (entry.action.by.name, entry.action.by.origin) == ("ada@example.com", "page")
    page.evaluate("window.hasStayed = true")
    ledger.resume("nightly")
    expect(page.locator(".title")).not_to_contain_text("paused")
    assert page.evaluate("window.hasStayed") is True
    page.get_by_role("link", name="Log out").click()
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()


def test_nobody_is_another_by_a_header_of_their_own(
    address: str, own_address: str, ledger: Ledger
) -> None:
    forged = {"x-forwarded-user": "eve@example.com", "x-supervisor-proxy": "made up"}
    forged["x-forwarded-for"] = "203.0.113.9"
    bob = {"cookie": "_oauth2_proxy=bob@example.com", **FROM_OUR_PAGE, **forged}
    with httpx.Client(verify=False, timeout=scaled(20)) as client:
        page = client.get(f"{address}/jobs/nightly", headers=bob)
        assert "bob@example.com" in page.text
        assert "actions/" not in page.text
        assert client.post(f"{address}/actions/pause/nightly", headers=bob).status_code == 403
        assert client.get(f"{own_address}/", headers=forged).status_code == 303
    [entry] = ledger.actions.search(ActionQuery(limit=1))
    assert (entry.action.by.name, entry.action.by.place) == ("bob@example.com", "127.0.0.1")


def test_the_cookie_of_a_session_behind_tls_is_secure(address: str) -> None:
    headers = {"cookie": "_oauth2_proxy=bob@example.com", **FROM_OUR_PAGE}
    with httpx.Client(verify=False, timeout=scaled(20)) as client:
        answer = client.post(f"{address}/login", data={"token": TOKEN}, headers=headers)
    cookie = answer.headers["set-cookie"]
    assert "Path=/supervisor/;" in cookie
    assert all(word in cookie for word in ("Secure", "HttpOnly", "SameSite=strict"))
