"""The tutorial in a project of one's own: its commands and files, word for word, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.project.doc_blocks import BLOCKS, ROOT, Block, masked, runs
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import scaled

PAGE = "docs/tutorial/your-project.md"
# The first line of a block with a file: its name, and whether the block is added to it.
FILE = re.compile(r"# ([\w/]+\.py)(, at the end)?\n")
# The commands that run until Ctrl-C, and what each writes when it is ready.
SERVERS = {"zklock devserver": "Ctrl-C ends it.", "celery -A shop worker": " ready."}
# In seconds. Starting takes a few.
DEADLINE = scaled(90)

pytestmark = [pytest.mark.celery, pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of what pip needs of this repository, because a build writes there."""
    clone = tmp_path / "src" / "django_zklock"
    shutil.copytree(ROOT / "django_zklock", clone / "django_zklock", ignore=shutil.ignore_patterns("__pycache__"))
    for pattern in ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.*"):
        for path in ROOT.glob(pattern):
            shutil.copy(path, clone / path.name)
    return clone


@pytest.fixture
def environment(clone: Path) -> dict[str, str]:
    """Return the environment of a new terminal; pip has no network."""
    # A terminal knows nothing of the environment in which these tests run.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CELERY", "COV", "DJANGO", "PYTEST", "PYTHON", "VIRTUAL_ENV", "ZOOKEEPER"))
    }
    pip = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = f"{Path(sys.executable).parent}:{inherited['PATH']}"
    return {**inherited, **pip, "PATH": path, "ZKLOCK": str(clone), "PYTHONUNBUFFERED": "1"}


def share_libraries(environment_folder: Path) -> None:
    """Let a new environment find the libraries of the tests' environment, and the programs that pip would install."""
    (packages,) = environment_folder.glob("lib/python*/site-packages")
    (packages / "libraries_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    for name, module in {"celery": "celery", "django-admin": "django"}.items():
        program = environment_folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec python -m {module} "$@"\n', encoding="utf-8")
        program.chmod(0o755)


class Reader:
    """Follow the page, block by block, in ``folder``."""

    def __init__(self, folder: Path, environment: dict[str, str], port: int) -> None:
        self.folder = folder
        self.environment = environment
        self.port = port
        self.servers: list[subprocess.Popen[bytes]] = []

    @property
    def project(self) -> Path:
        return self.folder / "shop-project"

    def follow(self, block: Block) -> None:
        """Write the file of the block, or run its commands and compare their output."""
        if block.language == "python":
            self.write(block)
            return
        # Each terminal starts in the reader's folder, and the first one stays in the project.
        in_project = self.project.exists() and "cd shop-project" not in block.commands
        commands = [command for command in block.commands if not command.startswith("export ZKLOCK=")]
        if "python3 -m venv .venv" in commands:
            self.install(commands)
            return
        if in_project:
            commands = [". .venv/bin/activate", *commands]
        for sign, ready in SERVERS.items():
            if sign in commands[-1]:
                self.serve(commands, sign, ready, block)
                return
        if "zklock list" in commands[-1]:
            self.wait_for(commands, block)
            return
        output = self.run(commands, self.project if in_project else self.folder)
        if block.output:
            assert masked(output) == masked(block.output)

    @property
    def seen(self) -> Path:
        """The file that lets the tasks end: on a busy machine ten seconds may be over before they are listed."""
        return self.folder / "seen"

    def write(self, block: Block) -> None:
        """Write the file that the block contains, with the address of this test's server and its own end of a task."""
        found = FILE.match(block.text)
        assert found, f"{block} does not say which file it is"
        path = self.project / found[1]
        text = block.text.replace("127.0.0.1:2181", f"127.0.0.1:{self.port}")
        text = text.replace("time.sleep(10)", f"while not __import__('os').path.exists('{self.seen}'): time.sleep(0.1)")
        with path.open("a" if found[2] else "w", encoding="utf-8") as file:
            file.write(text)

    def run(self, commands: list[str], folder: Path) -> str:
        """Run the commands in one shell and return what they write."""
        finished = subprocess.run(
            ["bash", "-ec", "\n".join(commands)],
            cwd=folder, env=self.environment, text=True, capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert finished.returncode == 0, f"{commands}:\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout

    def install(self, commands: list[str]) -> None:
        """Run the commands up to the new environment, give it the libraries, and run the others."""
        made = commands.index("python3 -m venv .venv") + 1
        self.run(commands[:made], self.folder)
        share_libraries(self.project / ".venv")
        self.run(commands[made:], self.project)

    def serve(self, commands: list[str], sign: str, ready: str, block: Block) -> None:
        """Start a server that the reader leaves running, and wait until it is ready."""
        log = self.folder / f"{sign.split(maxsplit=1)[0]}.log"
        commands[-1] = "exec " + commands[-1].replace("zklock devserver", f"zklock devserver --port {self.port}")
        with log.open("wb") as file:
            self.servers.append(
                subprocess.Popen(
                    ["bash", "-ec", "\n".join(commands)],
                    cwd=self.folder, env=self.environment, stdout=file, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )  # fmt: skip
        wait_until(lambda: ready in log.read_text(encoding="utf-8"), lambda: log.read_text(encoding="utf-8"))
        if block.output:
            assert masked(log.read_text(encoding="utf-8")) == masked(block.output)

    def wait_for(self, commands: list[str], block: Block) -> None:
        """Repeat a command until it shows what the block shows; the tasks have yet to arrive."""
        shown = without_ids(block.output)
        seen = ""

        def is_shown() -> bool:
            nonlocal seen
            seen = without_ids(self.run(commands, self.project))
            return seen == shown

        wait_until(is_shown, lambda: "\n".join([seen, *self.logs()]))
        self.seen.touch()

    def logs(self) -> Iterator[str]:
        """Return what each server has written, and the messages that no worker has taken."""
        for log in self.folder.glob("*.log"):
            yield f"{log.name}:\n{log.read_text(encoding='utf-8')}"
        yield str([str(path.relative_to(self.project)) for path in self.project.rglob("*.msg")])

    def stop(self) -> None:
        """Press Ctrl-C in the terminals of the servers, the last one first."""
        self.seen.touch()
        for server in reversed(self.servers):
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(DEADLINE)
            finally:
                if server.poll() is None:
                    os.killpg(server.pid, signal.SIGKILL)
                    server.wait()


def without_ids(output: str) -> str:
    """Return the masked output; on a busy machine the child that runs the task may be known already."""
    return masked(re.sub(r"\[[0-9a-f-]{36}\] \(.*\)", "[ID] (PROCESS)", output))


def wait_until(is_true: Callable[[], bool], seen: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not is_true():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.1)


@contextmanager
def reader(folder: Path, environment: dict[str, str]) -> Iterator[Reader]:
    reader = Reader(folder, environment, free_port())
    try:
        yield reader
    finally:
        reader.stop()


@runs(PAGE, "System check", "A ZooKeeper for development", "HOLDER", language="python")
def test_page(blocks: list[Block], tmp_path: Path, environment: dict[str, str]) -> None:
    """From an empty folder, the page leads to tasks that run one after the other for each invoice."""
    every_block = [block for block in BLOCKS if block.page == PAGE]
    assert {*blocks} <= {*every_block}
    with reader(tmp_path, environment) as follower:
        for block in every_block:
            follower.follow(block)
        log = tmp_path / "celery.log"
        wait_until(lambda: log.read_text().count(": end") == 4, log.read_text)
    steps = re.findall(r"invoice 42: (begin|end)(?:, fencing token (\d+))?", log.read_text())
    assert [step for step, _token in steps] == ["begin", "end"] * 3
    tokens = [int(token) for _step, token in steps if token]
    assert tokens == sorted(set(tokens))
