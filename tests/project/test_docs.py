"""The reference says what the code does: settings, checks, commands, public names."""

from __future__ import annotations

import ast
import inspect
import json
import re
from argparse import _SubParsersAction
from collections.abc import Callable
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.core.management.base import CommandParser

import django_zklock
from django_zklock import checks, conf, fencing, serializers
from django_zklock.conf import DatabaseOptions
from django_zklock.management.commands import zklock
from django_zklock.management.subcommands import exit_codes, run, watch
from django_zklock.management.subcommands._watch import Event, event_json
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops import trail
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry
from django_zklock.zk.pool import PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.project.reference_pages import REFERENCE, sections
from tests.toolbox.protocol.error_codes import CODES_OF_ZOOKEEPER, UNKNOWN


def field_of(section: str, name: str) -> str:
    found = re.search(rf"^:{name}: (.+)$", section, flags=re.MULTILINE)
    assert found, f"no :{name}: in {section[:60]!r}"
    return found[1]


def in_settings(options: type, name: str) -> object:
    """Return the default of a field of an options class, in the form of the settings."""
    (entry,) = (entry for entry in fields(options) if entry.name == name)
    value = entry.default if entry.default_factory is MISSING else entry.default_factory()
    if name == "strict":
        return "strict" if value else "lease"
    return list(value) if isinstance(value, tuple) else value


SETTINGS = {
    name: (options, field)
    for options, readers in (
        (ConnectionOptions, conf._CONNECTION),
        (PoolOptions, conf._POOL),
        (DatabaseOptions, conf._DATABASE),
    )
    for name, (field, _read) in readers.items()
}
TLS_SETTINGS = {name: (ConnectionOptions, field) for name, (field, _read) in conf._TLS.items()}


def test_settings__each_has_its_section() -> None:
    """Every key of ZKLOCK has a section, and no section is about one that does not exist."""
    assert set(sections("settings.md")) == {*SETTINGS, "TLS"}
    assert set(sections("settings.md", "###")) == set(TLS_SETTINGS)


@pytest.mark.parametrize(
    ("name", "level"), [*((name, "##") for name in SETTINGS), *((name, "###") for name in TLS_SETTINGS)]
)
def test_settings__defaults_are_the_codes(name: str, level: str) -> None:
    """The default in the reference is the one in the code."""
    options, field = (SETTINGS if level == "##" else TLS_SETTINGS)[name]
    default = in_settings(options, field)
    documented = field_of(sections("settings.md", level)[name], "Default")
    if default is MISSING:
        assert documented == "none, it must be given"
    else:
        assert ast.literal_eval(documented.strip("`")) == default


@pytest.mark.parametrize("name", [*SETTINGS, "TLS", *TLS_SETTINGS])
def test_settings__examples_are_accepted(name: str, settings: object) -> None:
    """The example of each setting is a valid one, inside TLS too."""
    level = "###" if name in TLS_SETTINGS else "##"
    example = {name: ast.literal_eval(field_of(sections("settings.md", level)[name], "Example").strip("`"))}
    options = {"TLS": example} if name in TLS_SETTINGS else example
    settings.ZKLOCK = {"default": {"HOSTS": "zk1:2181", **options}}  # type: ignore[attr-defined]
    conf.options("default")


def test_checks__each_has_its_section() -> None:
    """The ids in the code are the sections of the reference, in the order of the ids."""
    source = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (checks, fencing))
    in_code = re.findall(r'id="(django_zklock\.[EW]\d{3})"', source)
    assert len(set(in_code)) == len(in_code)
    assert list(sections("checks.md")) == sorted(in_code)


def parser() -> CommandParser:
    return zklock.Command().create_parser("manage.py", "zklock")


def actions() -> dict[str, CommandParser]:
    """Return the parser of each action of ``manage.py zklock``."""
    (found,) = (action for action in parser()._actions if isinstance(action, _SubParsersAction))
    return dict(found.choices)


def test_commands__each_action_has_its_section() -> None:
    """Every action has a section, and there is none for others."""
    documented = {name.removeprefix("zklock ") for name in sections("commands.md") if name.startswith("zklock ")}
    assert documented == set(actions())


@pytest.mark.parametrize("action", zklock.SUBCOMMANDS)
def test_commands__each_option_is_described(action: str) -> None:
    """Every option is described in its action's section, or among those of all actions, with its choices."""
    page = sections("commands.md")
    general = (REFERENCE / "commands.md").read_text(encoding="utf-8").partition("\n## ")[0]
    ours = {group.title: group._group_actions for group in actions()[action]._action_groups}
    django = ours.pop("options of all commands of Django")
    assert all(f"`{argument.option_strings[-1]}`" in general for argument in django)
    for argument in [each for group in ours.values() for each in group]:
        text = page[f"zklock {action}"]
        if argument.dest in {"using", "help"}:
            text = general
        name = argument.option_strings[-1] if argument.option_strings else str(argument.metavar)
        if argument.choices:
            name += f" {{{','.join(argument.choices)}}}"
        elif argument.option_strings and argument.metavar:
            name += f" {argument.metavar}"
        assert re.search(rf"^.*`{re.escape(name)}`$", text, flags=re.MULTILINE), f"{name} is not described"
        if argument.dest in {"using", "format", "sort", "on_conflict", "host", "port"} and argument.default:
            assert f"The default is `{argument.default}`." in text


@pytest.mark.parametrize(("action", "default"), [("run", run.DEFAULT_GRACE), ("watch", watch.DEFAULT_INTERVAL)])
def test_commands__default_times(action: str, default: float) -> None:
    """The number that the reference gives is the code's."""
    assert f"The default is {default:g}." in sections("commands.md")[f"zklock {action}"]


def test_commands__exit_codes() -> None:
    """Every status of its own has a row in the table, with the value of the code."""
    table = sections("commands.md")["Exit codes"]
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)}
    own = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert documented == own


def test_commands__json_names() -> None:
    """The tables list the names of the JSON, all of them and in their order."""
    identity = Identity(host="web1", pid=1, work=Work(kind="task", name="bill"))
    place = QueueEntry(
        node="n", path="p", kind="exclusive", position=0, held=True, token=1, session_id=1, since=0.0,
        identity=identity,
    )  # fmt: skip
    line = LockSnapshot(key="k", path="p", entries=(place,))
    lock = serializers.serialize_lock("default", line, 0.0)
    event = json.loads(event_json("default", Event("taken", line, place), datetime.now(UTC)))
    text = sections("commands.md")["JSON"]
    tables = [re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE) for part in text.split("\nA")[1:]]
    action = trail.Action(at=1.0, what=trail.BROKEN, key="k", lock="k", node="n", token=1, holder="h", by="b", why="w")
    done = serializers.serialize_action("default", action)
    assert tables == [list(lock), list(lock["places"][0]), list(lock["places"][0]["identity"]), list(done), list(event)]
    assert event["place"] == {**lock["places"][0], "age": event["place"]["age"]}
    for name in lock["places"][0]["identity"]["work"]:
        assert f"`{name}`" in text


def table(section: str) -> list[list[str]]:
    """Return the cells of the rows of the first table of a section."""
    lines = section.partition("|---")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_api__signature() -> None:
    """The signature that the page shows instead of the overloads for type checkers is that of the code."""
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"autofunction:: django_zklock\.zk_locked\((.*)\)$", text, flags=re.MULTILINE)
    found = dict(each.partition("=")[::2] for each in shown.split(", ") if each != "*")
    parameters = [
        each for each in inspect.signature(django_zklock.zk_locked).parameters.values() if each.name != "unknown"
    ]
    assert list(found) == [each.name for each in parameters]
    for each in parameters[1:]:
        assert found[each.name].strip('"') == ("UNSET" if each.name == "timeout" else str(each.default))


@pytest.mark.parametrize("function", [django_zklock.zk_lock, django_zklock.zk_locked])
def test_api__parameters(function: Callable[..., object]) -> None:
    """The table has each parameter of a function, in the order and with the defaults of the code."""
    rows = table(sections("api.md")[function.__name__])
    every = inspect.signature(function).parameters
    # Wrong names may be accepted to be answered with the right ones.
    parameters = {name: each for name, each in every.items() if each.kind is not each.VAR_KEYWORD}
    assert [name.strip("`") for name, _default, _meaning in rows] == [*parameters]
    for name, default, _meaning in rows:
        if default.startswith("`"):
            assert ast.literal_eval(default.strip("`")) == parameters[name.strip("`")].default


@pytest.mark.celery
def test_celery__options() -> None:
    """The table has each option that the code reads from Celery's configuration, and no other."""
    pytest.importorskip("celery")
    from django_zklock.contrib.celery import beat

    package = Path(django_zklock.__file__).parent
    code = "\n".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    read = set(re.findall(r'conf\.get\(\s*"(zklock_\w+)"', code))
    rows = table(sections("celery.md")["Settings"])
    assert {name.strip("`") for name, *_ in rows} == read
    defaults = {name.strip("`"): default.strip("`") for name, _type, default, _meaning in rows}
    assert re.findall(r"^MAX_PARKED = (\d+)$", code, re.MULTILINE) == [defaults["zklock_gate_max_parked"]]
    assert ast.literal_eval(defaults["zklock_beat_scheduler"]) == beat.DEFAULT_SCHEDULER
    assert ast.literal_eval(defaults["zklock_beat_using"]) == conf.DEFAULT_ALIAS


def test_errors__codes() -> None:
    """The table has every code of ZooKeeper, with the name in messages and what becomes of the request."""
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (-\d+|others) \| `([^`]+)` \| (\w+) \|", page, re.MULTILINE)
    documented = {UNKNOWN if code == "others" else int(code): (name, kind) for code, name, kind in rows}
    assert set(documented) == set(CODES_OF_ZOOKEEPER)
    for code, meaning in CODES_OF_ZOOKEEPER.items():
        name, kind = documented[code]
        assert name in meaning.name
        assert kind == meaning.kind
