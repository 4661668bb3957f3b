"""A run of tests like kazoo's, on the test server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testserver.kazoo_suite.run import Run
from tests.toolbox.suites.run import RunError

pytestmark = pytest.mark.program

TESTS = """\
import os
import pytest
from kazoo.testing import KazooTestCase

class TestServerWithSasl(KazooTestCase):
    def setUp(self):
        os.environ["ZOOKEEPER_JAAS_AUTH"] = "digest"
        super().setUp()

    def test_refused(self):
        raise AssertionError

    def tearDown(self):
        del os.environ["ZOOKEEPER_JAAS_AUTH"]

class TestServer(KazooTestCase):
    def test_stopped_and_started(self):
        self.client.create("/kept", b"data")
        client_id = self.client.client_id
        self.cluster[0].stop()
        self.cluster[0].run()
        assert self.client.retry(self.client.get, "/kept")[0] == b"data"
        assert self.client.client_id == client_id

    def test_wrong(self):
        assert self.client.exists("/missing"), "as it should be"

    def test_left_out(self):
        pytest.skip("not here")
"""


def write_source(folder: Path, text: str) -> Path:
    # Without an __init__.py the package kazoo is still the installed one.
    tests = folder / "source" / "kazoo" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_server.py").write_text(text, encoding="utf-8")
    return folder / "source"


def test_run__gives_an_outcome_for_each_test(tmp_path: Path) -> None:
    """kazoo's harness gets the test server, stopped and started too; an unsupported request affects no other test."""
    with Run("ours", write_source(tmp_path, TESTS), tmp_path, name="all") as run:
        outcomes = run.finish()
    found = {test.rpartition("::")[2]: (outcome.word, outcome.note) for test, outcome in outcomes.items()}
    assert found == {
        "test_refused": ("failed", "NotImplementedError: the test server knows no SASL"),
        "test_stopped_and_started": ("passed", ""),
        "test_wrong": ("failed", "AssertionError: as it should be"),
        "test_left_out": ("skipped", "not here"),
    }


def test_run__of_chosen_tests(tmp_path: Path) -> None:
    """With names of tests only these are run."""
    name = "kazoo/tests/test_server.py::TestServer::test_left_out"
    with Run("ours", write_source(tmp_path, TESTS), tmp_path, name="one", tests=[name]) as run:
        assert set(run.finish()) == {name}


def test_run__cannot_be_imported(tmp_path: Path) -> None:
    """Tests that cannot be imported are an error, which shows pytest's output."""
    with (
        Run("ours", write_source(tmp_path, "import nothing_of_this_name"), tmp_path, name="all") as run,
        pytest.raises(RunError, match=r"(?s)all-ours ended with status 2; .*.*nothing_of_this_name"),
    ):
        run.finish()
