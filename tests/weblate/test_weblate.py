"""Weblate, an application of others, with three of its tasks under locks: its worker, its admin and the doctor.

`make test-weblate` installs it into an environment of its own and runs these tests. Without that they are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import sync_playwright

from tests.toolbox.brokers.redis import Redis
from tests.toolbox.browser.chromium import launch
from tests.toolbox.databases.postgresql import PostgreSQL
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.process import Process
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.server import ZooKeeper

# The folder with the programs of the environment that has Weblate.
PROGRAMS = os.environ.get("ZKLOCK_WEBLATE", "")
SITE = Path(__file__).with_name("site")
LIST = "/admin/django_zklock/lock/"

pytestmark = [
    pytest.mark.skipif(not PROGRAMS, reason="`make test-weblate` runs it"),
    pytest.mark.timeout(1800),
    pytest.mark.once,
    pytest.mark.slow,
]


class Weblate:
    """An installed Weblate on servers of its own: how its programs are run."""

    def __init__(self, servers: Mapping[str, Any]) -> None:
        self.servers = servers
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "PYTHON"))},
            "PATH": os.pathsep.join([PROGRAMS, os.environ["PATH"]]),
            "PYTHONPATH": str(SITE),
            "DJANGO_SETTINGS_MODULE": "locked_tasks.settings",
            "WEBLATE_SERVERS": json.dumps(servers),
        }

    def run(self, *words: str, status: int = 0) -> str:
        """Run ``weblate`` and return its output; its exit code must be ``status``."""
        done = subprocess.run(
            ["weblate", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=scaled(900),
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def locks(self) -> dict[str, Any]:
        """Return the locks in use, by key."""
        found = json.loads(self.run("zklock", "list", "--json"))["locks"]
        return {lock["key"]: lock for lock in found}


class Program(Process):
    """A program of Weblate that runs until it is stopped, and is ready when ``ready`` says so."""

    name: ClassVar[str] = "weblate"
    start_timeout = 120.0
    stop_timeout = 60.0

    def __init__(self, weblate: Weblate, *words: str) -> None:
        super().__init__()
        self._weblate = weblate
        self._words = words

    def arguments(self) -> list[str]:
        return [f"{PROGRAMS}/{self._words[0]}", *self._words[1:]]

    def environment(self) -> dict[str, str]:
        return self._weblate.environment

    def is_ready(self) -> bool:
        return True


class Worker(Program):
    """A worker for all queues of Weblate, with two children."""

    def __init__(self, weblate: Weblate) -> None:
        queues = "celery,notify,memory,backup,translate"
        super().__init__(
            weblate, "celery", "-A", "weblate.utils", "worker", "-c", "2", "-Q", queues, "--loglevel", "INFO"
        )

    def is_ready(self) -> bool:
        # Its line in the log is not among those that Weblate's logging keeps.
        ping = ["celery", "-A", "weblate.utils", "inspect", "ping"]
        done = subprocess.run(ping, env=self.environment(), capture_output=True, timeout=scaled(120), check=False)
        return done.returncode == 0


class Site(Program):
    """The site, by Django's server, which hands out its style sheets too."""

    def __init__(self, weblate: Weblate) -> None:
        self.address = f"{LOOPBACK}:{weblate.servers['port']}"
        super().__init__(weblate, "weblate", "runserver", "--noreload", "--insecure", self.address)

    def is_ready(self) -> bool:
        try:
            urlopen(f"http://{self.address}/admin/login/", timeout=scaled(30)).close()
        except URLError:
            return False
        return True


class Holder(Program):
    """A command that holds the lock of a key while it runs."""

    def __init__(self, weblate: Weblate, key: str) -> None:
        super().__init__(weblate, "weblate", "zklock", "run", key, "--", "sleep", "3600")
        self._key = key

    def is_ready(self) -> bool:
        return self._key in self._weblate.locks()


@pytest.fixture(scope="module")
def weblate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weblate]:
    """Set Weblate up, as its own documents say, on PostgreSQL, Redis and ZooKeeper."""
    folder = tmp_path_factory.mktemp("weblate")
    with PostgreSQL() as database, Redis() as redis, ZooKeeper() as zookeeper:
        installed = Weblate(
            {
                "folder": str(folder),
                "database": database.settings,
                "redis": redis.url.removesuffix("/0"),
                "zookeeper": zookeeper.hosts,
                "port": free_port(),
            }
        )
        installed.run("migrate", "--no-input")
        yield installed


@pytest.fixture(scope="module")
def worker(weblate: Weblate) -> Iterator[Worker]:
    """Start its worker."""
    with Worker(weblate) as running:
        yield running


CLEANUPS = """
import time
sent = [cleanup_component.delay(7) for _ in range(4)]
until = time.monotonic() + 60
while time.monotonic() < until and sum(each.ready() for each in sent) < 3:
    time.sleep(0.1)
print(sum(each.successful() for each in sent), "of 4 have ended")
"""


def send(weblate: Weblate, code: str) -> str:
    """Run code of Python in its shell."""
    return weblate.run("shell", "-c", f"from weblate.trans.tasks import *\n{code}")


def test_checks(weblate: Weblate) -> None:
    """Its system checks say nothing about the locks."""
    assert "no issues" in weblate.run("check", "--tag", "django_zklock")


def test_tasks(weblate: Weblate, worker: Worker) -> None:
    """While another holds the lock, one call waits at the gate and the others are coalesced; then it runs once."""
    with Holder(weblate, "cleanup:7"):
        sent = send(weblate, CLEANUPS)
        assert "3 of 4 have ended" in sent
        lock = weblate.locks()["cleanup:7"]
        (holder, waiter) = lock["places"]
        assert (holder["identity"]["work"]["kind"], holder["identity"]["work"]["name"]) == ("command", "sleep")
        assert waiter["identity"]["work"]["name"] == "weblate.trans.tasks.cleanup_component"
    # There is no such component, which is Weblate's own error; that of a lock would be another.
    wait_until(lambda: weblate.locks() == {}, 120)
    assert "django_zklock.exceptions" not in worker.log.read_text()


def test_tasks__skipped(weblate: Weblate, worker: Worker) -> None:
    """A periodic task that runs elsewhere is skipped."""
    with Holder(weblate, "update-remotes"):
        found = send(weblate, "print(update_remotes.delay().get(60))")
        assert "'key': 'update-remotes', 'reason': 'conflict'" in found
    assert weblate.locks() == {}


def test_tasks__waits_without_a_child(weblate: Weblate, worker: Worker) -> None:
    """More calls wait than there are children, and another task runs meanwhile."""
    with Holder(weblate, "commit:7"):
        send(weblate, "for _ in range(3): perform_commit.delay(7, 'test')")
        wait_until(lambda: weblate.locks()["commit:7"]["waiters"] == 3, 120)
        assert "pong" in send(weblate, "from weblate.utils.tasks import ping; print('pong', ping.delay().get(60))")
    wait_until(lambda: weblate.locks() == {}, 120)


def test_doctor(weblate: Weblate, worker: Worker) -> None:
    """The doctor finds what matters there, and no error."""
    findings = json.loads(weblate.run("zklock", "doctor", "--json", status=1))["findings"]
    assert {each["level"] for each in findings} <= {"ok", "info", "warning"}
    named = {each["id"] for each in findings}
    assert any(name.startswith("celery.") for name in named), named


def test_admin(weblate: Weblate, worker: Worker, tmp_path: Path) -> None:
    """The pages work in Weblate's own admin, under its content security policy, and name its command."""
    weblate.run("createadmin", "--username", "ada", "--password", "of-a-test-42", "--email", "ada@example.org")
    cookie = send(
        weblate,
        "from django.test import Client\n"
        "from django.conf import settings\n"
        "from weblate.auth.models import User\n"
        "client = Client(); client.force_login(User.objects.get(username='ada'))\n"
        "print('COOKIE', settings.SESSION_COOKIE_NAME, client.cookies[settings.SESSION_COOKIE_NAME].value)",
    )
    _word, name, value = next(line for line in cookie.splitlines() if line.startswith("COOKIE")).split()
    with Site(weblate) as site, Holder(weblate, "commit:7"), sync_playwright() as playwright:
        base = f"http://{site.address}"
        browser = launch(playwright)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(scaled(60) * 1000)
        context.add_cookies([{"name": name, "value": value, "url": base}])
        page = context.new_page()
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("response", lambda answer: wrong.append(answer.url) if answer.status >= 400 else None)
        page.goto(f"{base}{LIST}")
        page.get_by_text("This page updates itself.").wait_for()
        page.screenshot(path=tmp_path / "list.png")
        page.get_by_role("link", name="commit:7").click()
        page.get_by_text("weblate zklock show commit:7").wait_for()
        page.screenshot(path=tmp_path / "lock.png")
        print(f"pictures: {tmp_path}")  # noqa: T201 - shown by -rP
        browser.close()
    assert not wrong
