"""What `make check` runs, with nothing on the machine but Python."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.once
pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


def test_without_services__another_program_fails(pytester: pytest.Pytester) -> None:
    """A test that starts a program other than Python fails there, even if the tested code minds no error."""
    pytester.makepyfile(
        """
        import contextlib, subprocess, sys

        def test_of_python():
            subprocess.run([sys.executable, "-c", ""], check=True)

        def test_of_another_program():
            with contextlib.suppress(Exception):
                subprocess.run(["true"], check=True)

        def test_server(server):
            assert type(server).__name__ == "ZooKeeperServer"
        """
    )
    pytester.makeini(f"[pytest]\ntimeout = 60\npythonpath = {ROOT} {ROOT / 'testproject'}")
    result = pytester.runpytest_subprocess(
        *("-p", "tests.conftest", "-p", "no:randomly", "-p", "no:hypothesispytest"), "--without-services"
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Failed: true is not there in `make check`*"])
