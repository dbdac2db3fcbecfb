"""`supervisor serve --ledger ... --ledger ...`: one list, one /metrics, a site for each ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from supervisor.cli.service import named_ledgers
from supervisor.errors import InvalidRedisUrl, NotConfigured
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance import warm
from tests.acceptance.test_serve import answers
from tests.ledger.jobs import admitted
from tests.ports import free_port
from tests.waiting import patience, wait_until
from tests.web.visits import TOKEN


@pytest.fixture
def client(redis_url: str) -> Iterator[httpx.Client]:
    """Of a server with the ledgers of `shop`, `mail` and one whose Redis is gone."""
    port, gone = free_port(), free_port()
    named = (f"{redis_url}#shop", f"{redis_url}#mail", f"gone=redis://127.0.0.1:{gone}/0")
    environ = {**os.environ, "SUPERVISOR_LEDGERS": " ".join(named), "SUPERVISOR_TOKEN": TOKEN}
    words = ["-m", "supervisor", "serve", "--port", str(port)]
    for prefix in ("shop", "mail"):
        ledger = Ledger.open(Settings(redis_url, prefix))
        ledger.acknowledge_server()
        # Python takes U+2028 and U+0085 for ends of lines, and Prometheus does not.
        admitted(ledger, 0, 1, name=f"of-{prefix}", task='x\u2028y\x85z"} 1')
        ledger.client.close()
    with TemporaryFile() as said:
        process = warm.Started(words, Path.cwd(), environ, said, said)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(20)) as visitor:
                wait_until(lambda: answers(visitor), 20)
                yield visitor
        finally:
            process.kill()
            process.wait()


def test_each_ledger_has_its_pages_and_all_have_one_list(client: httpx.Client) -> None:
    listed = client.get("/").text
    assert all(f'href="{name}/"' in listed for name in ("shop", "mail", "gone"))
    assert "of-shop" in (page := client.get("/shop/").text)
    assert "of-mail" not in page
    assert '<base href="/shop/">' in page
    assert "<title>Jobs - shop - supervisor</title>" in page
    assert '<a href="/ledgers" title="All ledgers">shop</a>' in page
    jobs = client.get("/mail/api/v1/jobs").text
    assert ("of-mail" in jobs, "of-shop" in jobs) == (True, False)
    assert client.get("/gone/").status_code == 503
    assert client.get("/nobody/").status_code == 404


def test_one_scrape_has_the_metrics_of_all_ledgers(client: httpx.Client) -> None:
    asked = {"Accept": "application/openmetrics-text; version=1.0.0"}
    families = {
        family.name: family
        for family in text_string_to_metric_families(client.get("/metrics", headers=asked).text)
    }
    up = {sample.labels["ledger"]: sample.value for sample in families["supervisor_up"].samples}
    assert up == {"shop": 1, "mail": 1, "gone": 0}
    skipped = families["supervisor_runs_skipped"].samples
    assert {(sample.labels["ledger"], sample.labels["job"]) for sample in skipped} == {
        ("shop", "of-shop"),
        ("mail", "of-mail"),
    }


def test_who_logs_in_to_one_ledger_acts_on_that_one(client: httpx.Client) -> None:
    form = {"token": TOKEN, "next": "/"}
    headers = {"sec-fetch-site": "same-origin"}
    answer = client.post("/shop/login", data=form, headers=headers)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/shop/")
    assert "; Path=/shop/" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "wrong", ["redis://h#metrics", "a b=redis://h", "shop=redis://h", "..=redis://h"]
)
def test_a_ledgers_name_that_is_no_part_of_an_address_is_refused(wrong: str) -> None:
    with pytest.raises(NotConfigured, match="give each ledger a name"):
        named_ledgers(["redis://one#shop", wrong])


def test_no_ledger_has_the_name_that_a_proxy_may_take_away() -> None:
    with pytest.raises(NotConfigured, match="'supervisor' is taken"):
        named_ledgers(["redis://one#shop", "redis://one"], "/supervisor")


def test_a_password_with_a_number_sign_is_not_taken_for_a_prefix() -> None:
    with pytest.raises(InvalidRedisUrl, match="there is a # in it") as refused:
        named_ledgers(["redis://:hun#ter2@one/0"])
    assert "ter2" not in str(refused.value)
