"""Who may do what: by the address of the server, the token, and where the request comes from."""

from __future__ import annotations

import httpx
import pytest
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.errors import NotConfigured
from supervisor.ledger.ledger import Ledger
from supervisor.web.access import Access
from supervisor.web.access_file import digest
from supervisor.web.actions import own_path
from supervisor.web.sessions import COOKIE, SESSION_TTL, FormToken, Sessions
from tests.jobs import job
from tests.tools.web.conftest import Serve
from tests.tools.web.visits import FROM_ANOTHER_SITE, FROM_OUR_PAGE, TOKEN, log_in

READ_BY_ALL_HERE = ("/", "/queues", "/metrics", "/api/v1/jobs")
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
    "host",
    [
        *("evil.example", "evil.example:9809", "127.0.0.1.evil.example", ""),
        *("127.0.0.1:80@evil", "[::1]evil", "[::1", "localhost:80:evil", "localhost:", "::1"),
    ],
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


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/jobs"])
def test_elsewhere_a_program_needs_the_token_to_read(serve: Serve, path: str) -> None:
    client = serve(PUBLIC)
    answer = client.get(path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get(path, headers={"authorization": "Bearer " + "x" * 20}).status_code == 401
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


def test_a_session_ends_with_its_time_and_with_its_token(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, token, other = Sessions(ledger), *(Access(t).tokens[0] for t in (TOKEN, TOKEN + "x"))
    cookie, key = sessions.begin(token), sessions.key()
    named = {"token": token}.get
    found = sessions.read(key, cookie, named)
    assert found is not None
    assert found.name == "token"
    assert sessions.read(key, cookie, lambda _: other) is None
    assert sessions.read(key, cookie, lambda _: None) is None
    assert sessions.read(key + "x", cookie, named) is None
    monkeypatch.setattr("supervisor.web.sessions.TTL_SECONDS", -1)
    assert sessions.read(key, cookie, named) is None


def test_a_session_that_is_logged_out_is_over_on_every_server(serve: Serve, ledger: Ledger) -> None:
    job(ledger)
    client, other = serve(PUBLIC), serve(PUBLIC)
    cookie = {"cookie": log_in(client).headers["set-cookie"].partition(";")[0]}
    assert other.get("/", headers=cookie).status_code == 200
    assert client.post("/logout", headers=FROM_OUR_PAGE).status_code == 303
    assert other.get("/", headers=cookie).status_code == 303
    act = other.post("/actions/pause/nightly", headers=cookie | FROM_OUR_PAGE)
    assert (act.status_code, ledger.job("nightly").paused) == (401, False)
    [key] = ledger.client.scan_iter(match="*:session:ended:*", count=1000)
    assert 0 < ledger.client.pttl(key) <= SESSION_TTL.total_seconds() * 1000


@pytest.mark.parametrize("cookie", ["", ".", "..", "9999999999.x.y", "\xe9.\xe9", "a" * 5000])
def test_a_made_up_session_is_refused(ledger: Ledger, cookie: str) -> None:
    sessions = Sessions(ledger)
    assert sessions.read(sessions.key(), cookie, lambda _: digest(TOKEN)) is None


def test_no_form_of_another_session_acts(serve: Serve, ledger: Ledger) -> None:
    job(ledger)
    client, path = serve(Access(TOKEN)), "/actions/pause/nightly"
    log_in(client)
    key = Sessions(ledger).key()
    made_up = ("", "x", FormToken(key, "session 1").text, FormToken("other key", "session 1").text)
    for token in made_up:
        answer = client.post(path, data={"csrf": token}, headers=FROM_OUR_PAGE, auth=None)
        assert (answer.status_code, ledger.job("nightly").paused) == (403, False)
        assert "load its page again" in answer.text
        answer = client.post("/logout", data={"csrf": token}, headers=FROM_OUR_PAGE, auth=None)
        assert (answer.status_code, COOKIE in client.cookies) == (403, True)
    assert client.post(path, headers=FROM_OUR_PAGE).status_code == 303
    assert ledger.job("nightly").paused


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
