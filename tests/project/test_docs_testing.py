"""The how-to about tests: each of its examples is a file of a project, and does what it says."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.project.doc_blocks import BLOCKS, Block, runs
from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from tests.toolbox.django.user_project import Shop

pytest_plugins = ["pytester", "tests.toolbox.django.user_project"]

PAGE = "docs/howto/test-your-code.md"
# Each example says in its first line which file it is.
FILE = re.compile(r"# (\S+)\n(.*)", re.DOTALL)
EXAMPLES = {
    found[1]: found[2] for block in BLOCKS if block.page == PAGE and (found := FILE.fullmatch(block.text)) is not None
}
TESTS = [name for name in EXAMPLES if name.startswith("test_") and name != "test_worker.py"]
DATABASE = """
    def rows_of(day):
        return [f"{day} 1", f"{day} 2"]


    def write(row):
        pass
"""


@pytest.fixture
def project(shop: Shop) -> Shop:
    """Return the project of the how-to, without its tests."""
    shop.write("shop/tasks.py", EXAMPLES["shop/tasks.py"])
    shop.write("shop/database.py", DATABASE)
    return shop


@runs(PAGE, "# pytest.ini", language="python")
def test_examples__none_is_left_out(blocks: list[Block]) -> None:
    """Every block of code is a file that is used below."""
    assert len(blocks) == len(EXAMPLES)
    rest = {"shop/tasks.py", "test_worker.py", "pytest.ini", "shop/tests.py", "shop/test_settings.py"}
    assert {*TESTS, *rest} == EXAMPLES.keys()


def test_examples__pass(project: Shop) -> None:
    """The tests of the how-to pass."""
    project.write_all({name: EXAMPLES[name] for name in TESTS})
    project.test(passed=sum(EXAMPLES[name].count("def test_") for name in TESTS))


@pytest.mark.celery
def test_worker(project: Shop) -> None:
    """So does that with a worker in the process."""
    project.write("test_worker.py", EXAMPLES["test_worker.py"])
    project.test(passed=1)


def test_always(project: Shop) -> None:
    """The configuration for all tests is enough for a test that names no fixture."""
    project.write("pytest.ini", EXAMPLES["pytest.ini"])
    project.configure("DJANGO_SETTINGS_MODULE = shop.settings")
    project.configure("pythonpath = .")
    project.write("test_bill.py", "from shop.tasks import bill\n\ndef test_bill():\n    bill(42)")
    project.test(passed=1)


def test_unittest(project: Shop) -> None:
    """Django's own test runner runs the test case, and with the other runner one that does not know of the sandbox."""
    project.write("shop/tests.py", EXAMPLES["shop/tests.py"])
    command = [sys.executable, "-m", "django", "test"]
    result = project.pytester.run(*command, "--settings=shop.settings", "shop.tests", timeout=scaled(90))
    result.stderr.fnmatch_lines(["Ran 2 tests*", "OK"])

    project.write("shop/test_settings.py", EXAMPLES["shop/test_settings.py"])
    project.write(
        "shop/test_plain.py",
        """
        from unittest import TestCase
        from shop.tasks import bill


        class PlainTests(TestCase):
            def test_bill(self):
                self.assertEqual(bill(42), "invoice 42 billed")
        """,
    )
    result = project.pytester.run(*command, "--settings=shop.test_settings", "shop", timeout=scaled(90))
    result.stderr.fnmatch_lines(["Ran 3 tests*", "OK"])
