"""Who may do what: by the address of the server, the token, and where the request comes from."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.errors import NotConfigured
from supervisor.ledger.ledger import Ledger
from supervisor.web.access import COOKIE, SESSION_TTL, Access, Sessions
from supervisor.web.access_file import digest
from supervisor.web.actions import own_path
from supervisor.web.http import MOST_BYTES
from tests.ledger.jobs import job
from tests.waiting import patience
from tests.web.conftest import Serve
from tests.web.visits import FROM_ANOTHER_SITE, FROM_OUR_PAGE, TOKEN, log_in

READ_BY_ALL_HERE = ("/", "/queues", "/metrics", "/api/v1/jobs", "/api/v1/beat")
BEARER = {"authorization": f"Bearer {TOKEN}"}
PUBLIC = Access(TOKEN, is_local=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "jobs.example.com", ""])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(NotConfigured, match="SUPERVISOR_TOKEN"):
        Access.of(host, None)
    assert not Access.of(host, TOKEN).is_local


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_address_needs_none_unless_it_is_behind_a_proxy(host: str) -> None:
    assert Access.of(host, None) == Access(None, is_local=True)
    with pytest.raises(NotConfigured, match="behind a proxy"):
        Access.of(host, None, is_proxied=True)


def test_a_short_token_is_refused() -> None:
    with pytest.raises(NotConfigured, match="16 ASCII characters"):
        Access.of("127.0.0.1", "secret")


def test_the_command_refuses_to_listen_for_others_without_a_token() -> None:
    done = CliRunner().invoke(main, ["serve", "--host", "0.0.0.0"])
    assert done.exit_code == 2
    assert "set SUPERVISOR_TOKEN to a secret, or listen on 127.0.0.1" in done.output


@pytest.mark.parametrize("path", READ_BY_ALL_HERE)
def test_everybody_on_this_machine_may_read(reader: httpx.Client, path: str) -> None:
    assert reader.get(path).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9809", "127.0.0.1.evil.example", ""]
)
def test_a_name_that_is_rebound_to_loopback_is_refused(reader: httpx.Client, host: str) -> None:
    assert reader.get("/api/v1/jobs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:9809", "LOCALHOST"]
)
def test_loopback_names_are_answered_to(reader: httpx.Client, host: str) -> None:
    assert reader.get("/healthz", headers={"host": host}).status_code == 200


def test_without_a_token_nothing_can_be_done(reader: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    answer = reader.post("/api/v1/jobs/nightly/trigger", headers=BEARER)
    assert (answer.status_code, ledger.history("nightly")) == (403, [])
    assert "SUPERVISOR_TOKEN" in answer.json()["error"]
    assert reader.post("/actions/trigger/nightly", headers=FROM_OUR_PAGE).status_code == 403
    assert log_in(reader).status_code == 403


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/jobs", "/events?beat="])
def test_elsewhere_a_program_needs_the_token_to_read(serve: Serve, path: str) -> None:
    client = serve(PUBLIC)
    answer = client.get(path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get(path, headers={"authorization": "Bearer " + "x" * 20}).status_code == 401
    if not path.startswith("/events"):  # which has no end
        assert client.get(path, headers=BEARER).status_code == 200


def test_elsewhere_a_person_is_sent_to_the_form_and_back(serve: Serve) -> None:
    client = serve(PUBLIC)
    sent = client.get("/?state=paused", headers={"host": "jobs.example.com"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=/%3Fstate%3Dpaused")
    assert "SUPERVISOR_TOKEN" in client.get(sent.headers["location"]).text
    assert log_in(client).headers["location"].endswith("/")
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("host", ["x/healthz?", "x/static/", "x/login#"])
def test_a_host_header_that_has_a_path_opens_nothing(serve: Serve, host: str) -> None:
    assert serve(PUBLIC).get("/api/v1/jobs", headers={"host": host}).status_code in (400, 401)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/login", "/static/page.css"])
def test_health_and_the_form_are_for_everybody(serve: Serve, path: str) -> None:
    assert serve(PUBLIC).get(path, headers={"host": "jobs.example.com"}).status_code == 200


def test_the_cookie_proves_the_token_without_containing_it(serve: Serve) -> None:
    cookie = log_in(serve(Access(TOKEN))).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie


def test_a_session_ends_with_its_time_and_with_its_token(ledger: Ledger) -> None:
    sessions = Sessions(ledger)
    session = sessions.begin("token", digest(TOKEN))
    named = {"token": digest(TOKEN)}.get
    assert sessions.name(session.cookie, session.root, named) == "token"
    assert sessions.name(session.cookie, session.root, lambda _: digest(TOKEN + "x")) is None
    assert sessions.name(session.cookie, session.root, lambda _: None) is None
    [key] = ledger.client.scan_iter(match="*:session:*", count=1000)
    assert 0 < ledger.client.pttl(key) <= SESSION_TTL.total_seconds() * 1000
    assert session.cookie not in key + (ledger.client.get(key) or "")
    assert session.key not in (ledger.client.get(key) or "")


def test_a_session_that_is_logged_out_is_over_on_every_server(serve: Serve, ledger: Ledger) -> None:
    client, other = serve(Access(TOKEN)), serve(Access(TOKEN))
    headers = {"cookie": log_in(client).headers["set-cookie"].partition(";")[0]}
    there = f"{str(other.base_url).rstrip('/')}{client.base_url.path}"
    options: dict[str, Any] = {"verify": False, "timeout": patience(20)}
    assert httpx.get(there, headers=headers, **options).status_code == 200
    assert client.post("/logout", headers=FROM_OUR_PAGE).status_code == 303
    assert httpx.get(there, headers=headers, **options).status_code == 303
    act = f"{there}actions/pause/nightly"
    job(ledger)
    assert httpx.post(act, headers=headers | FROM_OUR_PAGE, **options).status_code == 401


@pytest.mark.parametrize("cookie", ["", ".", "..", "9999999999.x.y", "\xe9.\xe9", "a" * 5000])
def test_a_made_up_session_is_refused(ledger: Ledger, cookie: str) -> None:
    assert Sessions(ledger).name(cookie, "/s/x", lambda _: digest(TOKEN)) is None


def test_a_wrong_token_gives_no_session(serve: Serve) -> None:
    client = serve(Access(TOKEN))
    answer = client.post("/login", data={"token": TOKEN + "x"}, headers=FROM_OUR_PAGE)
    assert (answer.status_code, COOKIE in answer.cookies) == (403, False)


def test_the_api_acts_for_the_bearer_and_for_no_cookie(serve: Serve, ledger: Ledger) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    log_in(client)
    path = "/api/v1/jobs/nightly/pause"
    assert client.post(path, headers=FROM_OUR_PAGE).status_code == 401
    assert client.post(path, headers={"authorization": "Basic abc"}).status_code == 401
    assert client.post(path, headers=BEARER).status_code == 200
    assert ledger.job("nightly").paused


def test_a_form_acts_for_a_session_from_our_own_page_alone(serve: Serve, ledger: Ledger) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    log_in(client)
    path = "/actions/pause/nightly"
    for headers in (FROM_ANOTHER_SITE, {"origin": "http://evil.example"}, {}):
        assert client.post(path, headers=headers).status_code == 403, headers
    assert not ledger.job("nightly").paused
    ours = {"origin": f"http://{client.base_url.netloc.decode()}"}
    assert client.post(path, headers=ours).status_code == 303
    assert ledger.job("nightly").paused


#: What a server on another port of this machine makes of a cookie: whatever it likes.
REPLAYED = (
    ("POST", "/actions/pause/nightly"),
    ("POST", "/api/v1/jobs/nightly/pause"),
    ("POST", "/logout"),
    ("GET", "/actions/pause/nightly"),
    ("GET", "/"),
    ("GET", "/jobs/nightly"),
    ("GET", "/api/v1/jobs"),
    ("GET", "/metrics"),
)


@pytest.mark.parametrize("method, path", REPLAYED)
def test_a_cookie_alone_neither_acts_nor_reads(
    serve: Serve, ledger: Ledger, method: str, path: str
) -> None:
    job(ledger, description="what only readers see")
    client = serve(PUBLIC)
    address = f"http://{client.base_url.netloc.decode()}"
    cookie = log_in(client).headers["set-cookie"].partition(";")[0]
    assert client.get("/jobs/nightly").status_code == 200
    captured = {"cookie": cookie, "origin": address, **FROM_OUR_PAGE}
    for guessed in ("", "/s/", f"/s/{'0' * 32}", f"/s/{cookie.partition('=')[2]}"):
        answer = httpx.request(method, address + guessed + path, headers=captured, verify=False)
        assert answer.status_code in (303, 401), (guessed, answer)
        assert "readers" not in answer.text
    assert not ledger.job("nightly").paused


def test_the_address_of_a_session_alone_opens_nothing(serve: Serve, ledger: Ledger) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    log_in(client)
    client.cookies.clear()
    sent = client.get("/jobs/nightly?span=1h")
    assert (sent.status_code, sent.headers["location"]) == (303, "/jobs/nightly?span=1h")
    assert client.post("/actions/pause/nightly", headers=FROM_OUR_PAGE).status_code == 401
    evil = httpx.get(f"{client.base_url}/evil.example", timeout=patience(20))
    assert evil.headers["location"] == "/evil.example"


def test_the_cookie_is_sent_under_the_address_of_its_session_alone(serve: Serve) -> None:
    client = serve(Access(TOKEN))
    cookie = log_in(client).headers["set-cookie"]
    assert f"Path={client.base_url.path.rstrip('/')}" in cookie


@pytest.mark.parametrize(
    "headers, is_secure",
    [
        ({"origin": "https://jobs.example.com"}, True),
        ({"x-forwarded-proto": "https", **FROM_OUR_PAGE}, True),
        (FROM_OUR_PAGE, False),
    ],
)
def test_behind_a_proxy_with_tls_the_cookie_is_secure(
    serve: Serve, headers: dict[str, str], is_secure: bool
) -> None:
    headers = {"host": "jobs.example.com", **headers}
    answer = serve(PUBLIC).post("/login", data={"token": TOKEN}, headers=headers)
    assert ("secure" in answer.headers["set-cookie"].lower()) == is_secure


def test_logging_out_takes_our_own_form(serve: Serve) -> None:
    client = serve(Access(TOKEN))
    log_in(client)
    assert client.post("/logout", headers=FROM_ANOTHER_SITE).status_code == 403
    answer = client.post("/logout", headers=FROM_OUR_PAGE)
    assert answer.status_code == 303
    assert COOKIE not in client.cookies


def test_a_large_body_is_refused(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    body = b'{"note": "' + b"x" * MOST_BYTES + b'"}'
    headers = {"content-type": "application/json"}
    answer = bearer.post("/api/v1/jobs/nightly/pause", content=body, headers=headers)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", ""]
)
def test_the_login_form_leads_nowhere_else(target: str) -> None:
    assert own_path(target) == "/"


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/healthz", "/nowhere", "/static/page.js"])
def test_every_answer_says_what_a_browser_must_not_do(reader: httpx.Client, path: str) -> None:
    headers = reader.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
