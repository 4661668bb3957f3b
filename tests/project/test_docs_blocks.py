"""Every code block and every shown output of every page is run by a test, or marked as an excerpt."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser

import pytest
from django.core.management import get_commands, load_command_class

from tests.project import (
    test_demo,
    test_docs_operations,
    test_docs_output,
    test_docs_python,
    test_docs_testing,
    test_readme,
    test_tutorial,
)
from tests.project.doc_blocks import (
    BLOCKS,
    PAGES,
    ROOT,
    Block,
    blocks_of,
    masked,
    neither_run_nor_marked,
    runs,
)

# The modules whose tests run blocks.
RUNNERS = (
    test_demo,
    test_docs_operations,
    test_docs_output,
    test_docs_python,
    test_docs_testing,
    test_readme,
    test_tutorial,
)
# The tutorial's commands are not only checked, but run.
CONSOLE = [
    block
    for block in BLOCKS
    if block.language == "console" and block.excerpt is None and block.page != test_tutorial.PAGE
]
CARD = "docs/howto/three-in-the-morning.md"
EXTRAS = re.compile(r'"?django-zklock(\[(?P<extras>[\w,]+)\])?"?')


def test_blocks__run_or_marked() -> None:
    """No block is left out; one with commands and no output is run by the next test."""
    assert neither_run_nor_marked([block for block in BLOCKS if block.output or not block.commands]) == []


@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_commands__can_be_typed(block: Block) -> None:
    """Each command in a block exists, and accepts its arguments."""
    assert block.commands
    for line in block.commands:
        for command in commands_of(line):
            check(command)


@pytest.mark.parametrize("line", re.findall(r"`((?:python manage\.py|celery) [^`]+)`", PAGES[CARD]))
def test_card__can_be_typed(line: str) -> None:
    """Each command of the operator's card exists, and accepts its arguments."""
    for command in commands_of(line):
        check(command)


@runs("docs/howto/look-at-locks.md", "0 3 * * *")
def test_crontab(blocks: list[Block]) -> None:
    """The line of the crontab has a command that accepts its arguments."""
    (block,) = blocks
    _change_folder, command = commands_of(block.text)
    check(command)


def test_blocks__have_fences() -> None:
    """Code stands between fences, where the tests look for it, and not in indented lines."""
    for page, whole in PAGES.items():
        text = re.sub(r"^```.*?^```$", "", whole, flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"(?<=\n\n)    .*$", text, flags=re.MULTILINE) == [], page


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.excerpt], ids=str)
def test_excerpts__are_in_the_file(block: Block) -> None:
    """An excerpt of a file has the lines of that file; any other has a reason."""
    path = ROOT / str(block.excerpt)
    if path.suffix and " " not in str(block.excerpt):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        assert [line for line in block.text.splitlines() if line.strip() not in lines] == []


@runs("CONTRIBUTING.md", language="markdown")
def test_a_block_that_is_neither_run_nor_marked(blocks: list[Block]) -> None:
    """A new block is found by its page and line; one that is marked, as CONTRIBUTING shows, is not."""
    (example,) = blocks
    new, marked = blocks_of("page.md", f'Text.\n\n```python\nprint("new")\n```\n\n{example.text}')
    assert neither_run_nor_marked([new, marked]) == ["page.md:4"]
    assert marked.excerpt == "of zoo.cfg"


def test_masked() -> None:
    """What differs from run to run is equal, and what is shown of the lock is not."""
    line = "0  held  5 min  task bill [77] (pid 944 on batch2)  2026-11-20 03:02:11  28118  _c_aa81…-lock-0000000004"
    same = "0  held  3 s    task bill [77] (pid 9 on web1)  2026-11-22 20:00:00  710  _c_01234567-89ab-lock-0000000000 "
    assert masked(line) == masked(same)
    assert masked(line) != masked(same.replace("held", "waiting"))


def commands_of(line: str) -> list[list[str]]:
    """Return the words of each command of a line, without the file that it writes."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in words:
        if word in {"&&", "|", ">", ">>"}:
            commands.append([])
        commands[-1].append(word)
    return [[word for word in command if word not in {"&&", "|"}] for command in commands if command[0][0] != ">"]


def check(command: list[str]) -> None:
    """Fail unless the program of a command exists here and takes the arguments."""
    program, *arguments = command
    match program.rpartition("/")[2]:
        case "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        case "pip":
            setup = ConfigParser(interpolation=None)
            setup.read(ROOT / "setup.cfg")
            wanted = EXTRAS.fullmatch(arguments[-1])
            assert wanted
            assert set((wanted["extras"] or "").split(",")) - {""} <= {*setup["options.extras_require"]}
        case "python":
            name, *rest = arguments[1:]
            load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(rest)
        case "celery":
            check_celery(arguments)
        case "export":
            settings = (ROOT / "testproject/config/settings.py").read_text(encoding="utf-8")
            assert arguments[0].partition("=")[0] in settings
        case "jq":
            # What its tables name is what the command writes, which another test compares.
            names = re.findall(r"`(\w+)`", PAGES["docs/reference/commands.md"].partition("\n## JSON")[2])
            assert {*re.findall(r"\.(\w+)", arguments[-1])} <= {*names}
        case _:
            assert program in {"cat", "echo"}


def check_celery(arguments: list[str]) -> None:
    """Fail unless Celery has the command, and a worker of ours the question."""
    celery = pytest.importorskip("celery.bin.celery")
    arguments = arguments[2:] if arguments[0] == "-A" else arguments
    assert arguments[0] in celery.celery.commands
    if arguments[0] == "inspect":
        from celery.worker.control import Panel

        package = ROOT / "django_zklock" / "contrib" / "celery"
        ours = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
        assert arguments[1] in Panel.meta or f"@inspect_command()\ndef {arguments[1]}(" in ours
