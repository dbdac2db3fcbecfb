"""The file of tokens and people: what is wrong with one, what takes over, and the proxy's names."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.errors import AccessFileInvalid
from supervisor.ledger.ledger import Ledger
from supervisor.web import access_file
from supervisor.web.access import Access
from supervisor.web.access_file import AccessFile, Role, digest, policy_in
from supervisor.web.metrics import Metrics
from supervisor.web.sessions import COOKIE
from tests.jobs import job
from tests.tools.web.access_files import (
    FILE,
    SECRET,
    TOKENS,
    access_of,
    bearing,
    named_by_the_proxy,
)
from tests.tools.web.conftest import Serve
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, log_in

WRONG = f"""\
anonymous: everybody
tokens:
  - name: a
    role: admin
    hash: "sha256:{digest("a")}"
  - {{name: b b, role: viewer, hash: secret}}
  - {{name: token, role: viewer, jobs: [x], hash: "sha256:{digest("c")}"}}
  - {{role: viewer}}
proxy:
  hash: "sha256:{digest("d")}"
  peeple: []
"""


def problems_of(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "access.yaml"
    path.write_text(text)
    with pytest.raises(AccessFileInvalid) as caught:
        policy_in(path)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_all_that_is_wrong_with_a_file_is_named_at_once(tmp_path: Path) -> None:
    assert problems_of(tmp_path, WRONG) == [
        "1: 'anonymous': 'everybody' is not 'viewer' or 'none'",
        "4: 'role': 'admin' is not 'viewer', 'operator' or 'editor'",
        "6: 'name': 'b b' is not valid (letters, digits and _ . @ - only, at most 100, "
        "a letter or digit first)",
        "6: 'hash': 'secret' is not valid (as `supervisor token new` prints it)",
        "7: unknown key 'jobs'",
        "8: 'name' is missing",
        "8: 'hash' is missing",
        "9: 'people' is missing",
        "11: unknown key 'peeple' (did you mean 'people'?)",
    ]


def test_names_and_tokens_are_given_once(tmp_path: Path) -> None:
    line = f'  - {{name: a, role: viewer, hash: "sha256:{digest("a")}"}}\n'
    people = f'proxy:\n  hash: "sha256:{digest("d")}"\n  people: [{{role: viewer}}]\n'
    text = "tokens:\n" + line * 2 + line.replace("name: a", "name: token") + people
    assert problems_of(tmp_path, text) == [
        "3: 'name': two tokens have the same (first on line 2)",
        "3: 'hash': two tokens have the same (first on line 2)",
        "4: the name 'token' is taken (another)",
        "4: 'hash': two tokens have the same (first on line 2)",
        "7: give a user or a group (one of the two)",
    ]


def test_the_server_does_not_start_with_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "access.yaml"
    path.write_text("tokens: 3\n")
    monkeypatch.setenv("SUPERVISOR_ACCESS_FILE", str(path))
    done = CliRunner().invoke(main, ["serve"])
    assert done.exit_code == 2
    assert "access.yaml:1: 'tokens': 3 is not a list" in done.output


def name_of(access: Access, given: str) -> str | None:
    token = access.token_sent(given)
    return token.name if token else None


def test_an_edited_file_takes_over_and_one_with_problems_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_file, "CHECK_SECONDS", 0.0)
    access = access_of(tmp_path)
    assert name_of(access, TOKENS["reads"]) == "reads"
    path = tmp_path / "access.yaml"
    path.write_text(FILE.replace("name: reads", "name: renamed"))
    assert name_of(access, TOKENS["reads"]) == "renamed"
    path.write_text("tokens: [")
    assert [name_of(access, TOKENS["reads"]) for _ in range(3)] == ["renamed"] * 3
    path.unlink()
    assert name_of(access, TOKENS["reads"]) == "renamed"
    (tmp_path / "mounted.yaml").write_text(FILE)
    path.symlink_to("mounted.yaml")  # as Kubernetes puts a newer one in place
    assert name_of(access, TOKENS["reads"]) == "reads"
    refused = [record for record in caplog.records if "access file refused" in record.message]
    assert len(refused) == 2


def test_a_refused_file_shows_in_the_metrics(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_file, "CHECK_SECONDS", 0.0)
    access = access_of(tmp_path)
    metrics = Metrics(ledger, access_file=access.file)

    def shown() -> list[str]:
        assert access.policy
        text, _ = metrics.written(metrics.read())
        lines = text.decode().splitlines()
        return [line for line in lines if line.startswith("supervisor_access_file_valid")]

    assert shown() == ["supervisor_access_file_valid 1.0"]
    (tmp_path / "access.yaml").write_text("tokens: [")
    assert shown() == ["supervisor_access_file_valid 0.0"]
    (tmp_path / "access.yaml").write_text("tokens: []")
    assert shown() == ["supervisor_access_file_valid 1.0"]


def test_a_new_token_works_with_the_line_that_is_printed(tmp_path: Path) -> None:
    words = ["new", "billing", "--role", "operator"]
    done = CliRunner().invoke(main, ["token", *words])
    lines = [line.strip() for line in done.output.splitlines() if line.strip()]
    token, line = lines[1], lines[3]
    path = tmp_path / "access.yaml"
    path.write_text(f"tokens:\n  {line}\n")
    [found] = policy_in(path).tokens
    assert (found.name, found.role) == ("billing", Role.OPERATOR)
    assert name_of(Access(file=AccessFile(path)), token) == "billing"
    assert len(token) > 40
    assert token not in path.read_text()


def test_a_session_ends_when_its_token_leaves_the_file(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_file, "CHECK_SECONDS", 0.0)
    client = serve(access_of(tmp_path, is_local=False))
    assert log_in(client, TOKENS["acts"]).status_code == 303
    assert client.get("/").status_code == 200
    (tmp_path / "access.yaml").write_text(FILE.replace(digest(TOKENS["acts"]), digest("another")))
    assert client.get("/").status_code == 303


def test_nobody_reads_here_if_the_file_says_so(serve: Serve, tmp_path: Path) -> None:
    client = serve(access_of(tmp_path, text="anonymous: none\n" + FILE))
    assert client.get("/api/v1/jobs").status_code == 401
    assert client.get("/api/v1/jobs", headers=bearing("reads")).status_code == 200


def test_a_viewer_logs_in_and_has_no_buttons(serve: Serve, ledger: Ledger, tmp_path: Path) -> None:
    job(ledger)
    client = serve(access_of(tmp_path))
    log_in(client, TOKENS["reads"])
    page = client.get("/").text
    assert "Log out" in page
    assert "actions/" not in page + client.get("/jobs/nightly").text
    log_in(client, TOKENS["acts"])
    page = client.get("/jobs/nightly").text
    assert "actions/trigger" in page
    assert "actions/edit" not in page


# The proxy.


PERSON = named_by_the_proxy("ada", "staff,ops")

NOT_THE_PROXY = (
    {"x-supervisor-proxy": SECRET + "x"},
    {"x-supervisor-proxy": ""},
    {"x-forwarded-user": ""},
)


@pytest.mark.parametrize("changed", NOT_THE_PROXY)
def test_no_name_counts_without_the_secret_of_the_proxy(
    serve: Serve, tmp_path: Path, changed: dict[str, str]
) -> None:
    client = serve(access_of(tmp_path, is_local=False))
    assert client.get("/", headers=PERSON).status_code == 200
    assert client.get("/", headers=PERSON | changed).status_code == 303


@pytest.mark.parametrize("name", ["x-supervisor-proxy", "x-forwarded-user"])
def test_a_header_that_is_sent_twice_names_nobody(serve: Serve, tmp_path: Path, name: str) -> None:
    twice = [*PERSON.items(), (name, PERSON[name])]
    assert serve(access_of(tmp_path, is_local=False)).get("/", headers=twice).status_code == 303


@pytest.mark.parametrize(
    "user, groups, paused, made",
    [
        *(("eve", "", 303, 400), ("ada", "ops", 303, 403), ("bob", "billing", 403, 403)),
        *(("jürgen", "", 303, 400), ("zoë", "staff,運用", 303, 403)),
    ],
)
def test_people_have_the_role_that_fits_first(
    serve: Serve, ledger: Ledger, tmp_path: Path, user: str, groups: str, paused: int, made: int
) -> None:
    job(ledger)
    client = serve(access_of(tmp_path, is_local=False))
    headers = named_by_the_proxy(user, groups)
    assert user in client.get("/", headers=headers).text
    assert client.post("/actions/pause/nightly", headers=headers).status_code == paused
    assert client.post("/actions/put", headers=headers).status_code == made


def test_who_has_no_role_is_told_so(serve: Serve, tmp_path: Path) -> None:
    client = serve(access_of(tmp_path, is_local=False))
    answer = client.get("/", headers=named_by_the_proxy("mallory", "guests"))
    assert answer.status_code == 403
    assert "mallory has no role here" in answer.text


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_whom_the_proxy_names_acts_from_our_page_alone(
    serve: Serve, ledger: Ledger, tmp_path: Path, site: str
) -> None:
    job(ledger)
    client = serve(access_of(tmp_path, is_local=False))
    headers = PERSON | {"sec-fetch-site": site}
    assert client.post("/actions/pause/nightly", headers=headers).status_code == 403
    assert client.post("/api/v1/jobs/nightly/pause", headers=PERSON).status_code == 401
    assert not ledger.job("nightly").paused


@pytest.mark.parametrize("secret, is_secure", [(SECRET, True), ("made up", False)])
def test_only_the_proxy_says_that_tls_is_spoken(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, is_secure: bool
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")
    headers = {"x-supervisor-proxy": secret, "x-forwarded-proto": "https", **FROM_OUR_PAGE}
    answer = serve(access_of(tmp_path)).post("/login", data={"token": TOKEN}, headers=headers)
    assert ("secure" in answer.headers["set-cookie"].lower()) == is_secure


@pytest.mark.parametrize("is_stripped", [True, False])
def test_below_a_path_of_the_proxy_all_addresses_begin_with_it(
    serve: Serve, ledger: Ledger, is_stripped: bool
) -> None:
    job(ledger)
    client = serve(Access(TOKEN, is_local=False, prefix="/ops"))
    sent_on = "" if is_stripped else "/ops"
    first = client.get(f"{sent_on}/jobs/nightly", headers={"accept": "text/html"})
    assert first.headers["location"] == "/ops/login?next=/jobs/nightly"
    form = client.get(f"{sent_on}/login?next=/jobs/nightly")
    assert '<base href="/ops/">' in form.text
    fields = {"token": TOKEN, "next": "/jobs/nightly"}
    entered = client.post(f"{sent_on}/login", data=fields, headers=FROM_OUR_PAGE)
    assert entered.headers["location"] == "/ops/jobs/nightly"
    cookie = entered.headers["set-cookie"]
    assert "Path=/ops/;" in cookie
    headers = {"cookie": f"{COOKIE}={cookie.partition('=')[2].partition(';')[0]}"}
    page = client.get(f"{sent_on}/jobs/nightly", headers=headers)
    assert '<base href="/ops/">' in page.text
    assert 'href="./jobs/nightly#main"' in page.text
    assert client.get(f"{sent_on}/static/page.css").status_code == 200
    out = client.post(f"{sent_on}/logout", headers=headers | FROM_OUR_PAGE)
    assert out.headers["location"] == "/ops/"
