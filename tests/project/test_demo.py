"""The demo and the account books that it closes with."""

from __future__ import annotations

import http.cookiejar
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any, cast

import pytest
from billing.ledger import Books, Waits, audit, disorders, overlaps
from billing.models import Account, Deposit, Execution
from billing.report import complaints
from billing.rounds import Round
from choice import choose
from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from tests.project.doc_blocks import Block, runs
from tests.toolbox.processes.process import StartError
from tests.toolbox.timing import scaled

# One after the other, also where tests run at once: each would like to have port 8000.
pytestmark = [pytest.mark.once, pytest.mark.xdist_group("demo")]

CHECKOUT = Path(__file__).resolve().parents[2]
DEMO = CHECKOUT / "testproject" / "demo.py"
# Seconds. The demo takes about ten; everything in it has its own limits.
TIMEOUT = scaled(100)
OWN = "django_zklock's own development server"
LOST = Books(
    run="without lock",
    deposits=200,
    paid_in=20_000,
    balance=13_000,
    executions=200,
    overlaps=118,
    held=0,
    disorders=0,
    waits=Waits.of([]),
)
KEPT = replace(LOST, run="with @zk_locked", balance=20_000, overlaps=0, held=200, waits=Waits.of([0.5, 1.5]))


class Task:
    """A task that is sent and never runs."""

    def delay(self, *_arguments: object, **_options: object) -> None:
        """Send nothing."""


@contextmanager
def demo(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo with its temporary files in the folder, and with nothing given."""
    given = {**os.environ, "ZOOKEEPER_HOSTS": "", "CELERY_BROKER_URL": "", "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *arguments],
        env={**given, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            # Nothing, unless the test has failed.
            process.kill()


def output_until(process: subprocess.Popen[str], text: str) -> str:
    """Return what the demo writes until a line has the text."""
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    pytest.fail(f"the demo ended before {text!r}: {''.join(lines)}{process.stderr.read()}")


def processes_of(folder: Path) -> dict[int, str]:
    """Return the command lines of the processes that were started with the folder for their temporary files."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end, or belong to another user.
        with suppress(OSError):
            if str(folder).encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
    return found


def row(output: str, name: str) -> list[str]:
    """Return the two cells of a row of the closing table."""
    [line] = re.findall(rf"^  {name} .*$", output, re.MULTILINE)
    return re.split(r" {2,}", line.strip())[1:]


def assert_shows_what_the_lock_does(output: str, zookeeper: str, shown: Block) -> None:
    """Look for lost updates without the lock and none with it, in the words of the tutorial."""
    assert re.search(rf"^  ZooKeeper +127\.0\.0\.1:\d{{5}}\n +{zookeeper}\n  Celery", output, re.MULTILINE)
    assert row(output, "deposits") == ["200", "200"]
    assert row(output, "overlaps seen")[1] == "0"
    assert row(output, "lock held") == ["-", "200 times"]
    lost = row(output, "lost updates")
    assert int(lost[0]) > 0
    assert lost[1] == "0"
    assert re.search(r"admin: http://127\.0\.0\.1:\d+/admin/django_zklock/lock/ \(login demo / demo\)", output)
    # Which ZooKeeper it is, and why, has been compared above.
    lines = [line for line in shape(shown.text) if not line.startswith(("django_zklock's", "because"))]
    assert [line for line in lines if line not in shape(output)] == []


def shape(text: str) -> list[str]:
    """Return the lines of an output without numbers, the widths of columns, and the bars of a terminal."""
    return [re.sub(r"\d+(\.\d+)?", "N", re.sub(r"[ █]+", " ", line).strip(" -")) for line in text.splitlines()]


# What Python runs at the start of each process of the demo.
REFUSES = """
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {refused} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""


def installed_by_make_demo(name: str = "django-zklock", extra: str = "celery") -> set[str]:
    """Return the distributions that come with one, itself included."""
    found = {name}
    for line in distribution(name).requires or []:
        wanted, _, marker = line.partition(";")
        if "extra ==" not in marker or (extra and re.search(rf"extra == .{extra}\b", marker)):
            # One for another system is not there.
            with suppress(PackageNotFoundError):
                found |= installed_by_make_demo(normal(re.split(r"[^\w.-]", wanted)[0]), "")
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder for PYTHONPATH, with which nothing can be imported that `make demo` does not install."""
    here = installed_by_make_demo()
    assert {"celery", "django", "kazoo", "kombu"} < here
    owners = packages_distributions().items()
    refused = sorted(module for module, names in owners if not here.intersection(map(normal, names)))
    assert "pytest" in refused
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(REFUSES.replace("{refused}", repr(refused)))
    return str(folder)


def test_bare(bare: str) -> None:
    """With that folder, what the demo has no need of cannot be imported."""
    environment = {**os.environ, "PYTHONPATH": bare}
    command = [sys.executable, "-c", "import celery; import pytest"]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'pytest'"


@runs("docs/tutorial/demo.md", "Starting")
@pytest.mark.celery
@pytest.mark.slow
def test_demo__once(blocks: list[Block], tmp_path: Path, bare: str) -> None:
    """Without Java the demo runs on the package's own server, shows the same, ends by itself, and leaves nothing.

    It needs no package that `make demo` does not install.
    """
    with demo(tmp_path, "--once", JAVA_HOME="/no/java", PYTHONPATH=bare) as process:
        output, errors = process.communicate(timeout=TIMEOUT)

    assert (process.returncode, errors) == (0, "")
    words = rf"{OWN},\n +because (Java|ZooKeeper) is not installed; get it with .+"
    assert_shows_what_the_lock_does(output, words, blocks[0])
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@runs("docs/tutorial/demo.md", "Starting")
@pytest.mark.celery
@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(300)
def test_demo__interrupted_while_it_stays(blocks: list[Block], tmp_path: Path) -> None:
    """The demo shows what the lock does, on a real ZooKeeper, and stays, with live locks in the admin, until Ctrl-C.

    That ends everything that the demo has started. An outage of ZooKeeper that outlasts the session is reported, and
    the work goes on when ZooKeeper is back.
    """
    with demo(tmp_path) as process:
        output = output_until(process, "Ctrl-C ends it all")
        assert_shows_what_the_lock_does(output, r"ZooKeeper \d+\.\d+\.\d+ (of|in) .+", blocks[0])
        found = re.search(r"admin: (http://[^/]+)(/\S+) \(login (\S+) / (\S+)\)", output)
        assert found is not None
        site, page, *login = found.groups()
        assert wait_for(lambda: "account:" in admin_page(site, page, *login))
        started = processes_of(tmp_path)
        assert len(started) > 6

        (zookeeper,) = (pid for pid, line in started.items() if "QuorumPeerMain" in line)
        os.kill(zookeeper, signal.SIGSTOP)
        assert "is ZooKeeper away?" in output_until(process, "No deposit was made for ")
        os.kill(zookeeper, signal.SIGCONT)
        output_until(process, "Deposits are made again.")

        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT)

    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == "Everything that was started has ended."
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.celery
@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("kind", "moment"), [("real", "Starting"), ("real", "ZooKeeper"), ("given", "without lock"), ("own", "ZooKeeper")]
)
def test_demo__interrupted_before_the_end(tmp_path: Path, testserver: ZooKeeperServer, kind: str, moment: str) -> None:
    """Ctrl-C at any moment, even twice, ends the demo with status 130, without a traceback, and leaves nothing."""
    wish = [] if kind == "given" else [f"--zookeeper={kind}"]
    with demo(tmp_path, *wish, ZOOKEEPER_HOSTS=testserver.hosts if kind == "given" else "") as process:
        output_until(process, moment)
        process.send_signal(signal.SIGINT)
        output_until(process, "Ending what was started")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT)

    assert (process.returncode, errors) == (130, "")
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.django_db
def test_round__failed_deposits() -> None:
    """Deposits that have failed are no longer on their way, and are not counted as sent twice if made later."""
    round_ = Round("r", cast("Any", Task()))
    round_.send(4)
    assert round_.on_their_way() == 4
    round_.give_up()
    assert round_.on_their_way() == 0
    round_.send(4)
    account = Account.objects.get(name="Ada, r")
    for number, on_their_way in enumerate([3, 2, 1, 0, 0, 0], start=1):
        Execution.objects.create(account_id=account.pk, run="r", task_id=str(number), started=0.0, ended=1.0)
        assert round_.on_their_way() == on_their_way
    round_.send(1)
    assert round_.on_their_way() == 1


UNREACHABLE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("argument", "environment", "says"),
    [
        pytest.param("--zookeeper=real", {"ZOOKEEPER_HOME": "/no"}, "apt-get install zookeeper", id="no ZooKeeper"),
        pytest.param("--once", {"ZOOKEEPER_HOSTS": UNREACHABLE}, UNREACHABLE, marks=pytest.mark.slow, id="ZooKeeper"),
        pytest.param(
            *("--zookeeper=own", {"CELERY_BROKER_URL": f"nonsense://{UNREACHABLE}"}, "CELERY_BROKER_URL"),
            marks=pytest.mark.celery,
            id="broker",
        ),
    ],
)
def test_demo__cannot_begin(tmp_path: Path, argument: str, environment: dict[str, str], says: str) -> None:
    """Where there is nothing that can be used the demo ends with status 1, and one line names what is missing."""
    with demo(tmp_path, "--once", argument, **environment) as process:
        _, errors = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert says in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.celery
def test_demo__worker_does_not_start(tmp_path: Path) -> None:
    """If the worker ends instead of starting, one line says so and the end of its log follows."""
    tmp_path.joinpath("sitecustomize.py").write_text(
        "import os, sys\nif 'worker' in sys.orig_argv: print('no room', flush=True); os._exit(7)\n"
    )
    with demo(tmp_path, "--once", "--zookeeper=own", PYTHONPATH=str(tmp_path)) as process:
        _, errors = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 1
    assert errors == "demo: Celery worker ended with status 7 instead of starting\n  | no room\n"
    assert processes_of(tmp_path) == {}


@pytest.fixture
def broken_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a ZooKeeper and a Java that cannot run it."""
    for name in ("lib/zookeeper-9.jar", "bin/java"):
        tmp_path.joinpath(name).parent.mkdir()
        tmp_path.joinpath(name).write_text("#!/bin/sh\necho no heap\nexit 3\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    monkeypatch.delenv("ZOOKEEPER_HOSTS", raising=False)


@pytest.mark.usefixtures("broken_zookeeper")
def test_choose__real_one_does_not_start() -> None:
    """If the installed ZooKeeper does not start, the package's own server does, and it is said why."""
    with ExitStack() as stack:
        choice = choose(None, stack)
        client = KazooClient(choice.hosts)
        client.start(timeout=scaled(20))
        client.stop()
        client.close()

    assert re.fullmatch(
        f"{OWN},\nbecause ZooKeeper ended with status 3 instead of starting; --zookeeper=real shows why", choice.words
    )


@pytest.mark.usefixtures("broken_zookeeper")
def test_choose__asked_for_the_real_one() -> None:
    """If the user wants just the installed ZooKeeper, they are shown what it wrote."""
    with ExitStack() as stack, pytest.raises(StartError, match="status 3 instead of starting\n  \\| no heap"):
        choose("real", stack)


@pytest.mark.usefixtures("broken_zookeeper")
def test_choose__given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ZooKeeper that is given is taken, and nothing is started."""
    monkeypatch.setenv("ZOOKEEPER_HOSTS", "zk1:2181,zk2:2181")
    with ExitStack() as stack:
        choice = choose(None, stack)

    assert choice == ("zk1:2181,zk2:2181", "as given in ZOOKEEPER_HOSTS", None)


def test_choose__own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own server is taken if it is asked for, whatever else is there."""
    monkeypatch.setenv("ZOOKEEPER_HOSTS", "127.0.0.1:1")
    with ExitStack() as stack:
        choice = choose("own", stack)

    assert choice.words == f"{OWN},\nas asked for"


@pytest.mark.celery
def test_broker__message_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers of the folder cannot find a message before it is written."""
    from config.broker import Transport
    from kombu import Connection
    from kombu.transport import filesystem

    seen: list[str] = []
    put = filesystem.Channel._put

    def look(channel: filesystem.Channel, queue: str, payload: dict[str, object], **options: object) -> None:
        put(channel, queue, payload, **options)
        seen.extend(path.name for path in tmp_path.glob("*.msg"))

    monkeypatch.setattr(filesystem.Channel, "_put", look)
    folders = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path), "control_folder": str(tmp_path / "c")}
    with Connection("filesystem://", transport=Transport, transport_options=folders) as connection:
        queue = connection.SimpleQueue("letters")
        queue.put({"a": 1})
        assert seen == []
        assert len(list(tmp_path.glob("*.msg"))) == 1
        assert queue.get(timeout=scaled(20)).payload == {"a": 1}
        queue.close()


@pytest.mark.parametrize(
    ("intervals", "count"),
    [
        ([], 0),
        ([(0, 1), (1, 2), (3, 4)], 0),
        ([(0, 2), (1, 3)], 1),
        ([(0, 9), (1, 2), (3, 4)], 2),
        ([(0, 1), (0, 1)], 1),
    ],
)
def test_overlaps(intervals: list[tuple[float, float]], count: int) -> None:
    """Counted is what begins before everything earlier has ended; to begin at the very end is no overlap."""
    assert overlaps(intervals) == count


def test_disorders__token_given_twice_or_late() -> None:
    """Tokens must increase strictly."""
    assert disorders([1, 2, 5]) == 0
    assert disorders([1, 1, 3, 2]) == 2


def test_waits() -> None:
    """The 95th of a hundred waits is one that really occurred; without waits all is 0."""
    assert Waits.of(float(n) for n in range(100, 0, -1)) == Waits(mean=50.5, p95=95.0, longest=100.0)
    assert Waits.of([]) == Waits(mean=0.0, p95=0.0, longest=0.0)


@pytest.mark.django_db
def test_audit__lost_update() -> None:
    """A deposit that another one has overwritten is missing from the books, and their overlap is seen."""
    account = Account.objects.create(name="Ada", balance=200)
    other = Account.objects.create(name="Grace", balance=50)
    Deposit.objects.create(account=other, amount=100, run="another")
    for start in (1.0, 1.5, 3.0):
        Deposit.objects.create(account=account, amount=100, run="this")
        Execution.objects.create(
            account=account, run="this", task_id="t", started=start, ended=start + 1, token=int(start * 2), waited=start
        )

    books = audit("this")

    assert (books.deposits, books.paid_in, books.balance, books.executions) == (3, 300, 200, 3)
    assert (books.lost_updates, books.overlaps, books.held, books.disorders) == (1, 1, 3, 0)
    assert books.waits.longest == 3.0
    assert not books.agree


@pytest.mark.django_db
def test_audit__no_deposits() -> None:
    """A run without deposits has nothing to lose."""
    books = audit("nothing")

    assert books.agree
    assert books.lost_updates == 0


@pytest.mark.parametrize(
    ("without", "locked", "complaint"),
    [
        ({"executions": 199}, {}, "200 deposits were made by 199 tasks"),
        ({"balance": 20_000}, {}, "nothing was lost without the lock, so the demo showed nothing"),
        ({}, {"balance": 19_900}, "the books do not agree: 1.00 is missing"),
        ({}, {"balance": 20_100}, "the books do not agree: -1.00 is missing"),
        ({}, {"overlaps": 2}, "2 tasks worked while another was at the same account"),
        ({}, {"held": 198}, "2 tasks ran without holding it"),
        ({}, {"disorders": 1}, "1 fencing tokens were not above the one before"),
    ],
)
def test_complaints__something_wrong(without: dict[str, int], locked: dict[str, int], complaint: str) -> None:
    """Each thing that the demo ought to show and did not is named."""
    [found] = complaints(replace(LOST, **without), replace(KEPT, **locked))  # type: ignore[arg-type]

    assert complaint in found


def admin_page(site: str, page: str, name: str, password: str) -> str:
    """Log in to the admin and return the page's text."""
    cookies = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    browser.open(f"{site}/admin/login/", timeout=scaled(20)).close()
    token = next(cookie.value for cookie in cookies if cookie.name == "csrftoken")
    form = {"username": name, "password": password, "csrfmiddlewaretoken": token, "next": page}
    with browser.open(f"{site}/admin/login/", urllib.parse.urlencode(form).encode(), timeout=scaled(20)) as answer:
        return str(answer.read().decode())


def wait_for(condition: Callable[[], bool]) -> bool:
    """Look a few times, since the first locks take a moment."""
    return any(condition() for _ in range(20))
