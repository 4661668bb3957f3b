"""Three in the morning: ten questions of an operator, answered by the admin alone.

The test reads what a person reads, and types what is shown as it is shown. One worker has a task that holds a lock, two
tasks that wait for it, and one that was granted another lock and has no slot. For the command there are
``tests/integration/celery/test_operator.py`` and the tests of the documents.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.visitor import LIST
from tests.toolbox.celery.program import run_in_shell
from tests.toolbox.celery.worker import Worker
from tests.toolbox.celery.workshop import Sent, Workshop
from tests.toolbox.processes.project import PROJECT
from tests.toolbox.timing import scaled

# Seconds. A worker writes about a task that has run for five seconds, and looks after its tasks once in a while.
SOON = scaled(60)
TASK = "workshop.tasks.bill"
REASON = "the bank is away"
HOST = os.uname().nodename
DURATION = r"\d+ (s|min)"

pytestmark = pytest.mark.timeout(400)

Shell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What happens in a shop: the bills that are on their way, in the order of the queue, and the child of the first.

    The bill is the lock that all of them need. The report was granted to a task that has no slot, because the bank has
    it.
    """

    shop: str
    tasks: list[Sent]
    child: int
    worker: Worker
    workshop: Workshop

    @property
    def bill(self) -> str:
        return f"{self.shop}:bill"

    @property
    def report(self) -> str:
        return f"{self.shop}:report"

    @property
    def bank(self) -> str:
        return f"{self.shop}:bank"

    def end_the_others(self) -> None:
        """Let the tasks end that have nothing to do with the bill."""
        self.workshop.let_go(self.bank)
        self.workshop.entered(self.report)
        self.workshop.let_go(self.report)
        self.workshop.wait_empty(self.report, SOON)


@pytest.fixture
def scene(workshop: Workshop) -> Iterator[Scene]:
    """Let the worker, which has two slots, do all this."""
    assert workshop.worker is not None
    shop = f"shop-{uuid.uuid4().hex[:8]}"
    bill, report, bank = (f"{shop}:{document}" for document in ("bill", "report", "bank"))
    workshop.other_client.take(report)
    workshop.send("bill", shop, "report", report)
    workshop.wait_count(report, 2)
    tasks = [workshop.send("bill", shop, "bill", f"{bill}:0")]
    child = workshop.entered(f"{bill}:0")["pid"]
    for number, stubborn in ((1, True), (2, False)):
        tasks.append(workshop.send("bill", shop, "bill", f"{bill}:{number}", stubborn))
        workshop.wait_count(bill, number + 1)
    workshop.send("bill", shop, "bank", bank)
    workshop.entered(bank)
    workshop.other_client.release(report)
    yield Scene(shop=shop, tasks=tasks, child=child, worker=workshop.worker, workshop=workshop)
    workshop.other_client.release_all()
    for gate in (report, bank, *(f"{bill}:{number}" for number in range(len(tasks)))):
        workshop.let_go(gate)
    for key in (bill, report, bank):
        workshop.wait_empty(key, SOON)


@pytest.fixture
def shell(workshop: Workshop, tmp_path: Path) -> Shell:
    """Return a function that runs a line in the folder of the project."""

    def run(line: str) -> None:
        (folder := tmp_path / uuid.uuid4().hex).mkdir()
        run_in_shell(line, workshop._environment, folder, where=PROJECT)

    return run


def test_admin(scene: Scene, shell: Shell, visit: Visit) -> None:
    """What the pages say answers each question, while they update themselves; the lines to type do what they say."""
    first, second, third = (f"task {TASK} [{sent.id}]" for sent in scene.tasks)
    page = visit().page
    page.set_default_timeout(SOON * 1000)
    soon = SOON * 1000

    # Which lock is the worst now?
    page.goto(f"{LIST}?q={scene.shop}")
    locks = page.locator("#zklock-list tbody tr")
    expect(locks).to_have_count(3)
    expect(locks.first).to_contain_text(scene.bill)
    expect(locks.first).to_contain_text("2 waiting")

    # Does a task run, or does it wait for a slot?
    expect(locks.filter(has_text=scene.report)).to_contain_text("waits for a slot", timeout=soon)
    expect(locks.first).not_to_contain_text("waits for a slot")

    # Is ZooKeeper healthy?
    page.get_by_role("link", name="Ensembles").click()
    expect(page.get_by_role("row").filter(has_text="standalone")).to_contain_text("127.0.0.1:")
    page.go_back()

    # What holds it: which task, in which process of which host? With which arguments? Since when?
    page.get_by_role("link", name=scene.bill, exact=True).click()
    holder = page.locator(".zklock-holders li")
    where = f"pid {scene.child} on {HOST}, worker {scene.worker.node_name}"
    expect(holder).to_contain_text(where, timeout=soon)
    expect(holder).to_contain_text(first)
    expect(holder).to_contain_text(f"Called with shop={scene.shop}, document=bill")
    expect(holder).to_contain_text(re.compile(rf"Held for {DURATION},"))

    # Which tasks wait, how many, for how long?
    queue = page.locator(".zklock-queue tbody tr")
    expect(page.locator(".zklock-facts")).to_contain_text("2 waiting")
    expect(queue).to_have_count(3)
    for position, task in ((1, second), (2, third)):
        expect(queue.nth(position)).to_contain_text(re.compile(rf"{position}\s+waiting"))
        expect(queue.nth(position)).to_contain_text(task)
        expect(queue.nth(position).locator("time")).to_have_text(re.compile(DURATION))

    def line(label: str) -> str:
        """Return the line to type that stands beside a label."""
        return page.locator(".zklock-commands > div").filter(has_text=label).locator("code").inner_text()

    # How do I end the task, and spare the worker?
    scene.end_the_others()
    shell(line("End the task"))
    expect(holder).to_contain_text(second, timeout=soon)
    child = scene.workshop.entered(f"{scene.bill}:1")["pid"]

    # And if it ignores SIGTERM?
    expect(holder).to_contain_text(f"pid {child} on {HOST}", timeout=soon)
    kill = line(f"If that does not end it, on {HOST}")
    shell(line("End the task"))
    expect(holder).to_contain_text("The worker cannot end it any more", timeout=soon)
    expect(holder).not_to_contain_text("terminate")
    assert line(f"The worker cannot end it any more; on {HOST}") == kill
    shell(kill)
    expect(holder).to_contain_text(third, timeout=soon)
    expect(page.locator(".zklock-facts")).not_to_contain_text("waiting")

    # Which operator broke it last night, and what became of it?
    scene.workshop.entered(f"{scene.bill}:2")
    page.get_by_role("button", name="Break the lock").click()
    page.get_by_label("Reason").fill(REASON)
    page.get_by_role("button", name="Break the lock").click()
    expect(page.locator("#zklock-lock")).to_contain_text("This lock has no holder and no waiters.")
    page.get_by_role("link", name="History").click()
    action = page.locator(".zklock-table tbody tr")
    expect(action).to_have_count(1)
    for column, text in {"User": "root", "Action": "broken", "Holder": third, "Reason": REASON}.items():
        expect(action.locator(f"[data-label='{column}']")).to_contain_text(text)
    expect(action.locator("[data-label='Since then']")).to_have_text("broken")
    assert scene.worker.is_running()
