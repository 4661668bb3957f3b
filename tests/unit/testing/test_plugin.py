"""The fixtures in projects of users: each test runs the tests of a small project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from tests.toolbox.django.user_project import Shop

ROOT = Path(__file__).resolve().parents[3]

pytest_plugins = ["pytester", "tests.toolbox.django.user_project"]
pytestmark = pytest.mark.program

PLAIN = """
    [pytest]
    pythonpath = .
    filterwarnings = error
"""
BILL = """
    from shop.tasks import bill


    def test_bill(zookeeper):
        assert bill(42) == "42 billed"
"""
CELERY_TASKS = """
    import queue
    import threading

    from celery import Celery

    from django_zklock import current_lock, zk_locked
    app = Celery("shop", broker="memory://", backend="cache+memory://")
    holds = queue.Queue()
    go = threading.Event()


    @app.task
    @zk_locked("invoice:{number}", on_conflict="retry")
    def charge(number):
        return f"{number} charged"


    @app.task
    @zk_locked("export")
    def export():
        holds.put(current_lock())
        assert go.wait(10)
        current_lock().check()
        return "exported"
"""
# In any order: each test finds a clean state and leaves locks, nodes and faults.
MESS = """
    import pytest
    from django.conf import settings

    from django_zklock import ZooKeeperUnavailable, current_lock, zk_lock
    from django_zklock.connections import connections


    @pytest.fixture
    def clean(zookeeper):
        assert current_lock() is None
        assert zookeeper.paths() == []
        assert zookeeper.sessions() == []
        assert zookeeper.requests.all() == []
        # With its answer: one that came later would show that the server behind a black hole is only slow.
        zk_lock("key").acquire().release(wait=True)
        return zookeeper


    def test_hold(clean):
        zk_lock("left").acquire()


    def test_faults(clean, zk_faults):
        assert clean.faults is zk_faults
        zk_faults.cut_reply("getData")
        zk_faults.delay(0.01)
        zk_faults.refuse()
        zk_faults.drop()


    def test_black_hole(clean, zk_faults):
        zk_faults.black_hole()
        with pytest.raises(ZooKeeperUnavailable):
            zk_lock("key").acquire(timeout=0.5)


    def test_stop(clean):
        clean.server.stop()


    def test_without(zookeeper_server):
        assert settings.ZKLOCK["default"]["HOSTS"] == "zk1.invalid:2181,zk2.invalid:2181"
        assert connections["default"].sessions() == []
        assert zookeeper_server.sessions() == []
        assert zookeeper_server.paths() == ["/zookeeper", "/zookeeper/config", "/zookeeper/quota"]
"""
# What a project gets that asks for the fixtures, by file.
REQUESTED = {
    # Code of the project takes its locks, although its own ZooKeeper does not exist.
    "test_shop.py": """
        from shop.tasks import bill


        def test_bill(zookeeper):
            assert bill(42) == "42 billed"
            assert zookeeper.paths()[:2] == [f"{zookeeper.root}/default", f"{zookeeper.root}/default/invoice:42"]
            assert zookeeper.requests.count("connect") == 1


        def test_bill__busy(zookeeper):
            with zookeeper.held_elsewhere("invoice:42"):
                assert bill(42)["reason"] == "conflict"
            assert bill(42) == "42 billed"
    """,
    # Aliases of two ensembles share no locks on the one server; options that it supports are kept.
    "test_aliases.py": """
        from django_zklock import zk_lock
        from django_zklock.connections import connections


        def test_aliases(zookeeper):
            with zookeeper.held_elsewhere("key", using="reports"):
                assert zk_lock("key").try_acquire() is not None
                assert zk_lock("key", using="reports").try_acquire() is None
            assert {session.timeout for session in zookeeper.sessions()} == {6, 15}
            assert {connections[alias].options.connection.hosts for alias in connections} == {zookeeper.hosts}
    """,
    # With `settings` before or after our fixture in a test, and changed by it, the project's setting is restored.
    "test_settings.py": """
        import pytest
        from django.conf import settings as current
        from django.test import override_settings

        from shop.tasks import bill


        def change(settings, zookeeper):
            assert bill(42) == "42 billed"
            settings.DEBUG = True
            assert bill(42) == "42 billed"
            settings.ZKLOCK = {"default": {"HOSTS": zookeeper.hosts, "ROOT": f"{zookeeper.root}/changed"}}
            assert bill(42) == "42 billed"
            assert f"{zookeeper.root}/changed/invoice:42" in zookeeper.paths()


        @pytest.fixture(autouse=True)
        def _put_back():
            yield
            assert current.ZKLOCK["default"]["HOSTS"] == "zk1.invalid:2181,zk2.invalid:2181"
            assert not current.DEBUG


        def test_settings_first(settings, zookeeper):
            change(settings, zookeeper)


        def test_settings_last(zookeeper, settings):
            change(settings, zookeeper)


        def test_settings_before_and_after(settings, request):
            settings.ZKLOCK = {"default": {"HOSTS": "zk5.invalid:2181"}}
            change(settings, request.getfixturevalue("zookeeper"))


        @override_settings(ZKLOCK={"default": {"HOSTS": "zk6.invalid:2181"}})
        def test_override(zookeeper):
            assert current.ZKLOCK["default"]["HOSTS"] == "zk6.invalid:2181"
    """,
    # In tests with and without transactions, and in Django's own test cases.
    "test_database.py": """
        import pytest
        from django.contrib.auth.models import User
        from django.test import TestCase

        from django_zklock import zk_lock


        def register(name):
            with zk_lock(f"user:{name}"):
                return User.objects.get_or_create(username=name)[1]


        @pytest.mark.django_db
        def test_rolled_back(zookeeper):
            assert register("ada")


        @pytest.mark.django_db(transaction=True)
        def test_transactional(zookeeper):
            assert register("ada")


        @pytest.mark.usefixtures("zookeeper")
        class Tests(TestCase):
            def test_case(self):
                assert register("ada")
    """,
    # A project that wants another server overrides this fixture only.
    "options/conftest.py": """
        import pytest

        from django_zklock.testing import ZooKeeperServer


        @pytest.fixture(scope="session")
        def zookeeper_server():
            with ZooKeeperServer(max_session_timeout=2) as server:
                yield server
    """,
    "options/test_options.py": """
        from django_zklock import zk_lock


        def test_options(zookeeper):
            with zk_lock("key"):
                assert [session.timeout for session in zookeeper.sessions()] == [2]
    """,
}
# A project keeps its own fixture `zookeeper`, whatever its scope, and our other fixtures work beside it.
CLASH = {
    "clash/conftest.py": """
        import pytest


        @pytest.fixture(scope="session")
        def zookeeper():
            return "the project's own"
    """,
    "clash/test_clash.py": """
        from shop.tasks import bill


        def test_clash(zookeeper, zk_faults, zookeeper_server):
            assert zookeeper == "the project's own"
            assert zk_faults is zookeeper_server.faults
            assert bill(42) == "42 billed"
    """,
}
# What a project gets that has all its tests on the server.
ALWAYS = {
    # Test data of a class and fixtures of a class, a module and the run are on a server too, which no test sees.
    "test_wide.py": """
        import unittest

        import pytest
        from django.test import TestCase

        from django_zklock import zk_lock
        from shop.tasks import bill


        @pytest.fixture(scope="session")
        def of_session():
            return bill(42)


        @pytest.fixture(scope="module")
        def of_module():
            return bill(42)


        @pytest.fixture(scope="class")
        def of_class():
            return bill(42)


        @pytest.fixture(scope="module")
        def held():
            with zk_lock("kept") as held:
                yield held
                held.check()


        def test_fixtures(of_session, of_module, of_class, zookeeper):
            assert {of_session, of_module, of_class} == {"42 billed"}
            assert zookeeper.paths() == []
            assert zookeeper.sessions() == []


        @pytest.mark.parametrize("number", [1, 2])
        def test_hold_of_a_fixture(held, zookeeper, number):
            with zookeeper.held_elsewhere("kept"):
                held.check()
                zookeeper.faults.expire()


        class DjangoTests(TestCase):
            @classmethod
            def setUpTestData(cls):
                cls.billed = bill(42)

            def test_data(self):
                assert self.billed == "42 billed"


        class Tests(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.billed = bill(42)

            def test_class(self):
                assert self.billed == "42 billed"
    """,
    # A project's own server may have the scope of a module.
    "test_narrow.py": """
        import pytest

        from django_zklock.testing import ZooKeeperServer
        from shop.tasks import bill


        @pytest.fixture(scope="module")
        def zookeeper_server():
            with ZooKeeperServer() as server:
                yield server


        def test_bill():
            assert bill(42) == "42 billed"
    """,
}
# How a project tests its tasks, by file.
WITH_CELERY = {
    # The tasks take their locks in the calling thread.
    "test_eager.py": """
        import pytest

        from django_zklock import LockConflict
        from shop.tasks import app, charge


        @pytest.fixture(autouse=True)
        def _eager(monkeypatch):
            monkeypatch.setitem(app.conf, "task_always_eager", True)
            monkeypatch.setitem(app.conf, "task_eager_propagates", True)


        def test_charge(zookeeper):
            assert charge.delay(42).get() == "42 charged"


        def test_charge__busy(zookeeper):
            with zookeeper.held_elsewhere("invoice:42"), pytest.raises(LockConflict):
                charge.delay(42)
    """,
    # A worker in a thread of the test's process takes locks on the test's server, and can lose them.
    "test_worker.py": """
        import pytest
        from celery.contrib.testing.worker import start_worker

        from django_zklock import LockLost, zk_lock
        from shop import tasks


        # Longer than any test's part of the server.
        @pytest.fixture(scope="module")
        def worker():
            with start_worker(tasks.app, perform_ping_check=False):
                yield


        @pytest.fixture
        def holds():
            tasks.holds.queue.clear()
            tasks.go.clear()
            yield tasks.holds
            tasks.go.set()


        def test_export(worker, holds, zookeeper):
            result = tasks.export.delay()
            held = holds.get(timeout=10)
            assert zookeeper.owner(held.node) in [session.id for session in zookeeper.sessions()]
            assert zk_lock("export").try_acquire() is None
            tasks.go.set()
            assert result.get(timeout=10) == "exported"


        def test_export__lost(worker, holds, zookeeper):
            result = tasks.export.delay()
            zookeeper.lose(holds.get(timeout=10))
            tasks.go.set()
            with pytest.raises(LockLost):
                result.get(timeout=10)
    """,
}


@pytest.mark.parametrize("seed", [1, 2])
def test_zookeeper__each_test_begins_anew(shop: Shop, seed: int) -> None:
    """The fixtures do what their tests say, in any order, with a clean state; and the setting is restored."""
    shop.write_all({"test_mess.py": MESS, **REQUESTED, **CLASH})
    shop.test(f"--randomly-seed={seed}", passed=5 + 2 + 1 + 4 + 3 + 1 + 1)


@pytest.mark.parametrize("is_set_up", [True, False], ids=["set up before", "not yet read"])
def test_without_pytest_django(shop: Shop, monkeypatch: pytest.MonkeyPatch, is_set_up: bool) -> None:
    """In a project that sets up Django itself, before the tests or in one, the setting is redirected too."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
    shop.write("pytest.ini", PLAIN)
    shop.write("conftest.py", "import django\n\ndjango.setup()" if is_set_up else "")
    shop.write("test_shop.py", BILL)
    shop.test("-p", "no:django", passed=1)


def test_without_django(shop: Shop) -> None:
    """A run without Django or ZooKeeper imports neither; without settings there is a server with an empty root."""
    shop.write("pytest.ini", PLAIN)
    shop.write(
        "test_first.py",
        """
        import sys


        def test_nothing_is_imported():
            assert "django_zklock.testing.plugin" in sys.modules
            assert not {"django", "kazoo", "asyncio"} & set(sys.modules)
        """,
    )
    shop.write(
        "test_plain.py",
        """
        from contextlib import closing


        def test_plain(zookeeper):
            # Not before the other test.
            from django.conf import settings
            from django_zklock.zk.lock import Lock
            from django_zklock.zk.pool import Pool, PoolOptions
            from django_zklock.zk.wire import ConnectionOptions

            options = PoolOptions(connection=ConnectionOptions(hosts=zookeeper.hosts), root=zookeeper.root)
            with closing(Pool("plain", options)) as pool:
                lock = Lock("key", pool)
                with lock as held:
                    assert zookeeper.owner(held.node) == zookeeper.sessions()[0].id
                with zookeeper.held_elsewhere("key"):
                    assert lock.try_acquire() is None
            assert not settings.configured
        """,
    )
    shop.test("-p", "no:django", "-p", "no:randomly", passed=2)


def test_always(shop: Shop) -> None:
    """With one line of configuration every test of a project is on the server, and fixtures with a wider scope too."""
    shop.configure("zklock_server = always")
    shop.write_all({**ALWAYS, **CLASH})
    shop.test(passed=5 + 1 + 1)


def test_always__unknown_value(shop: Shop) -> None:
    """A wrong value is refused at the start, with the right ones."""
    shop.write("test_shop.py", BILL)
    result = shop.pytester.runpytest_subprocess("-o", "zklock_server=sometimes")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*zklock_server must be one of always, requested, not 'sometimes'*"])


def test_xdist__each_worker_has_its_own_server(shop: Shop) -> None:
    """The tests of one worker share a server, and no two workers share one."""
    shop.write(
        "test_workers.py",
        """
        from pathlib import Path

        import pytest

        from shop.tasks import bill


        @pytest.mark.parametrize("number", range(8))
        def test_bill(number, zookeeper, worker_id):
            assert bill(42) == "42 billed"
            with Path(f"{worker_id}.txt").open("a") as hosts:
                hosts.write(zookeeper.hosts + "\\n")
        """,
    )
    shop.test("-n", "2", passed=8)
    hosts = [set(path.read_text("utf-8").split()) for path in shop.pytester.path.glob("gw*.txt")]
    assert [len(each) for each in hosts] == [1, 1]
    assert hosts[0] != hosts[1]


def test_unused__nothing_is_started(shop: Shop) -> None:
    """A project that uses no fixture has no server, and its setting is unchanged."""
    shop.write(
        "test_shop.py",
        """
        import threading

        from django.conf import settings


        def test_nothing():
            assert threading.enumerate() == [threading.main_thread()]
            assert settings.ZKLOCK["default"]["HOSTS"] == "zk1.invalid:2181,zk2.invalid:2181"
        """,
    )
    shop.test(passed=1)


def test_module__needs_pytest_and_the_standard_library() -> None:
    """The plugin, which every run of pytest imports, imports almost nothing itself."""
    code = (
        "import pytest, sys; before = {*sys.modules}; import django_zklock.testing.plugin; "
        "print(*{name.partition('.')[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=scaled(60)
    )
    assert finished.stdout.split() == ["django_zklock"]


def test_installed__project_imported_before_pytest(shop: Shop) -> None:
    """A test runner that sets up Django and then calls pytest gets no warning about early imports."""
    site = shop.pytester.path / "site"
    shutil.copytree(ROOT / "django_zklock", site / "django_zklock", ignore=shutil.ignore_patterns("__pycache__"))
    files = [file.relative_to(site).as_posix() for file in site.rglob("*.py")]
    shop.write("site/django_zklock-99.dist-info/METADATA", "Metadata-Version: 2.4\nName: django-zklock\nVersion: 99")
    shop.write("site/django_zklock-99.dist-info/entry_points.txt", "[pytest11]\nzklock = django_zklock.testing.plugin")
    shop.write("site/django_zklock-99.dist-info/RECORD", "\n".join(f"{file},," for file in files))
    shop.write("test_shop.py", BILL)
    shop.write(
        "runner.py",
        """
        import os
        import sys

        sys.path.insert(0, "site")
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"

        import django
        import pytest

        django.setup()
        sys.exit(pytest.main(["-pno:hypothesispytest"]))
        """,
    )
    result = shop.pytester.run(sys.executable, "runner.py", timeout=scaled(90))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["plugins:*django-zklock-99*"])


def test_coverage(shop: Shop) -> None:
    """A run under coverage measures the project as before."""
    shop.write("test_shop.py", BILL)
    coverage = (sys.executable, "-m", "coverage")
    result = shop.pytester.run(*coverage, "run", "--include=shop/*", "-m", "pytest", *shop.UNUSED, timeout=scaled(90))
    result.assert_outcomes(passed=1)
    report = shop.pytester.run(*coverage, "report", "--include=shop/tasks.py", "-m")
    # The loop of `export`, which no test calls.
    report.stdout.fnmatch_lines(["shop/tasks.py* 11-12"])


@pytest.mark.celery
@pytest.mark.slow
def test_celery__in_process(shop: Shop) -> None:
    """Tasks take their locks on the test's server, in the calling thread and in a worker of the test's process."""
    shop.write("shop/tasks.py", CELERY_TASKS)
    shop.write_all(WITH_CELERY)
    shop.test(passed=2 + 2)


@pytest.mark.celery
@pytest.mark.slow
def test_celery__worker_of_its_own_plugin(shop: Shop) -> None:
    """The worker of Celery's pytest plugin, which may start and end before or after a test's sandbox."""
    shop.write("conftest.py", 'pytest_plugins = ["celery.contrib.pytest"]')
    shop.write(
        "test_worker.py",
        """
        import pytest

        from shop.tasks import bill

        pytestmark = pytest.mark.celery(result_backend="cache+memory://")


        def check(celery_app, zookeeper):
            remote = celery_app.tasks["bill"]
            assert remote.delay(42).get(timeout=10) == "42 billed"
            with zookeeper.held_elsewhere("invoice:42"):
                assert remote.delay(42).get(timeout=10)["reason"] == "conflict"


        @pytest.fixture
        def app(celery_app):
            celery_app.task(name="bill")(bill)
            return celery_app


        def test_worker_last(zookeeper, app, celery_worker):
            check(app, zookeeper)


        def test_worker_first(app, celery_worker, zookeeper):
            check(app, zookeeper)
        """,
    )
    shop.test(passed=2)


@pytest.mark.celery
@pytest.mark.slow
def test_celery__two_workers_of_its_own_plugin(shop: Shop) -> None:
    """The plugin's worker of the run and that of a test, in one process, take the same tasks, each under its lock."""
    shop.write("conftest.py", 'pytest_plugins = ["celery.contrib.pytest"]')
    shop.write(
        "test_workers.py",
        """
        import pytest
        from celery import shared_task

        from django_zklock import current_lock, zk_locked


        @pytest.fixture(scope="session")
        def celery_config():
            return {"broker_url": "memory://", "result_backend": "cache+memory://"}


        @shared_task
        @zk_locked("invoice:{number}")
        def charge(number):
            return current_lock().key


        def test_both(celery_session_worker, celery_worker, zookeeper):
            sent = [charge.delay(number) for number in range(10)]
            assert [each.get(timeout=20) for each in sent] == [f"invoice:{number}" for number in range(10)]
        """,
    )
    # Celery's worker of the run often gets no task once that of a test has ended, also without locks.
    shop.test(passed=1)
