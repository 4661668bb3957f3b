"""System checks: what each reports, and that a good setting passes all of them."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from django.dispatch import Signal, receiver
from django.template import Library

from django_zklock import checks, zk_locked

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.nocelery, pytest.mark.oldest]

HOSTS = "zk1:2181"


@pytest.fixture
def check(settings: Settings) -> Callable[..., list[CheckMessage]]:
    """Return a function that sets the default alias and runs all checks of the package."""

    def run(**values: Any) -> list[CheckMessage]:
        settings.ZKLOCK = {"default": {"HOSTS": HOSTS, **values}}
        return run_checks(tags=[checks.TAG])

    return run


Check = Callable[..., list[CheckMessage]]


def ids(messages: list[CheckMessage]) -> list[str | None]:
    return [message.id for message in messages]


def test_checks__good_setting(check: Check) -> None:
    """The defaults pass every check."""
    assert check() == []


def test_checks__no_network(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """`manage.py check` works where ZooKeeper cannot be reached: no check opens a socket."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a check opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert check(AUTH=[("digest", "u:p")], ACL="creator", SESSION_TIMEOUT=90) != []


def test_checks__each_message_helps(check: Check) -> None:
    """Every message has an id of this package and a hint."""
    messages = check(AUTH=[("digest", "u:p")], SESSION_TIMEOUT=2, CONNECT_TIMEOUT=9, SASL={"mechanism": "X"})
    assert len(messages) >= 3
    for message in messages:
        assert message.id is not None
        assert message.id.startswith("django_zklock.")
        assert message.hint


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("zk..test", ["django_zklock.E006"]),
        (f"{'x' * 64}.test", ["django_zklock.E006"]),
        (".", ["django_zklock.E006"]),
        ("zk1.test.", []),
        ("x" * 63, []),
        ("bücher.test", []),
        ("127.1", []),
        ("[fe80::1%lo]", []),
    ],
)
def test_hosts__unencodable(check: Check, host: str, found: list[str]) -> None:
    """A name that DNS cannot be asked for is an error, which names it; the other servers can be used all the same."""
    messages = check(HOSTS=f"zk1:2181,{host}:2181/app")
    assert ids(messages) == found
    assert all(repr(host) in message.msg for message in messages)


@pytest.mark.parametrize("value", [None, {}, [HOSTS]])
def test_e001__no_setting(settings: Settings, value: object) -> None:
    """Without a usable ZKLOCK E001 is the only message, and no other check fails."""
    settings.ZKLOCK = value
    (message,) = run_checks(tags=[checks.TAG])
    assert message.id == "django_zklock.E001"
    assert "ZKLOCK" in message.msg


def test_e001__names_the_place_in_each_alias(settings: Settings) -> None:
    """Every alias is checked, and the good ones are not reported."""
    settings.ZKLOCK = {
        "default": {"HOSTS": HOSTS},
        "reports": {"HOSTS": []},
        "archive": {"HOSTS": HOSTS, "ROOTS": "/"},
    }
    messages = run_checks(tags=[checks.TAG])
    assert ids(messages) == ["django_zklock.E001"] * 2
    assert 'ZKLOCK["archive"]["ROOTS"]' in messages[0].msg
    assert 'ZKLOCK["reports"]["HOSTS"]' in messages[1].msg


def test_e001__stops_manage_py(settings: Settings) -> None:
    """A wrong setting fails `manage.py check`."""
    settings.ZKLOCK = {"default": {}}
    with pytest.raises(CommandError, match=r"django_zklock\.E001"):
        call_command("check")


def test_e002__missing_file(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each TLS file that cannot be read is named with its place."""
    good = tmp_path / "ca.pem"
    good.touch()
    messages = check(TLS={"CA": str(good), "CERT": str(tmp_path / "no.pem"), "KEY": str(tmp_path)})
    assert ids(messages) == ["django_zklock.E002"] * 2
    assert 'ZKLOCK["default"]["TLS"]["CERT"]' in messages[0].msg
    assert str(tmp_path / "no.pem") in messages[0].msg
    assert 'ZKLOCK["default"]["TLS"]["KEY"]' in messages[1].msg


def test_e002__unreadable_file(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that this process may not read is reported too."""
    key = tmp_path / "key.pem"
    key.touch()
    # Not chmod, because the superuser can read every file.
    monkeypatch.setattr("os.access", lambda *_arguments: False)
    assert ids(check(TLS={"KEY": str(key)})) == ["django_zklock.E002"]


def test_e003__sasl_without_library(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """SASL without the library pure-sasl is an error."""
    monkeypatch.setattr(checks, "find_spec", lambda _name: None)
    sasl = {"mechanism": "DIGEST-MD5", "username": "u", "password": "p"}
    (message,) = check(SASL=sasl, ACL="creator")
    assert message.id == "django_zklock.E003"
    monkeypatch.setattr(checks, "find_spec", lambda _name: object())
    assert check(SASL=sasl, ACL="creator") == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"AUTH": [("digest", "u:p")]}, ["django_zklock.W001"]),
        ({"AUTH": [("digest", "u:p")], "ACL": "creator"}, []),
        ({"AUTH": [("digest", "u:p")], "ACL": ["digest:u:hash:cdrwa"]}, []),
        ({"SASL": {"mechanism": "DIGEST-MD5"}}, ["django_zklock.W001"]),
        ({"ACL": "open"}, []),
    ],
)
def test_w001__credentials_that_protect_nothing(
    check: Check, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], found: list[str]
) -> None:
    """Credentials without an ACL that requires them are a warning."""
    monkeypatch.setattr(checks, "find_spec", lambda _name: object())
    assert ids(check(**values)) == found


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        ({}, ["django_zklock.E004"]),
        ({"TLS": {"VERIFY": True}}, ["django_zklock.E004"]),
        ({"AUTH": [("digest", "u:p")]}, []),
        ({"SASL": {"mechanism": "DIGEST-MD5"}}, []),
        ({"TLS": {"CERT": __file__, "KEY": __file__}}, []),
    ],
)
def test_e004__a_creator_without_identity(check: Check, identity: dict[str, Any], found: list[str]) -> None:
    """Only a session with an identity can own nodes: by credentials, SASL or a client certificate."""
    assert ids(check(ACL="creator", **identity)) == found


def test_w001__says_no_credentials(check: Check) -> None:
    """The message about credentials does not repeat them."""
    (message,) = check(AUTH=[("digest", "shop:hunter2")])
    assert "hunter2" not in str(message)


@pytest.mark.parametrize(
    ("connect", "session", "found"), [(5, 15, []), (15, 15, []), (15.1, 15, ["django_zklock.W002"])]
)
def test_w002__connecting_takes_longer_than_a_session(
    check: Check, connect: float, session: float, found: list[str]
) -> None:
    """A connect timeout above the session timeout is a warning."""
    assert ids(check(CONNECT_TIMEOUT=connect, SESSION_TIMEOUT=session)) == found


@pytest.mark.parametrize(
    ("session", "found"),
    [(4, []), (60, []), (3.9, ["django_zklock.W003"]), (60.5, ["django_zklock.W003"])],
)
def test_w003__session_too_short_or_too_long(check: Check, session: float, found: list[str]) -> None:
    """A session timeout out of range is a warning that names the consequence."""
    messages = check(SESSION_TIMEOUT=session, CONNECT_TIMEOUT=1)
    assert ids(messages) == found
    for message in messages:
        assert ("loses every lock" if session < 4 else "a host that dies") in message.msg


def test_w004__no_default_alias(settings: Settings) -> None:
    """Aliases without a "default" are a warning."""
    settings.ZKLOCK = {"main": {"HOSTS": HOSTS}, "reports": {"HOSTS": HOSTS}}
    (message,) = run_checks(tags=[checks.TAG])
    assert message.id == "django_zklock.W004"
    assert "main, reports" in message.msg


# Functions that are registered without their lock.


def registered_without_lock() -> list[str]:
    return [message.msg.split()[0] for message in checks.check_registrations() if message.id == "django_zklock.W005"]


def other_decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_registrations__receiver(check: Check) -> None:
    """A receiver with its lock above `@receiver` is called without it, also with decorators between; below is right."""
    signal = Signal()

    @zk_locked("k", template="k")
    @receiver(signal)  # noqa: DJ013 - this mistake
    def above(sender: object, **facts: object) -> None: ...

    @zk_locked("k", template="k")
    @other_decorator
    @receiver(signal)  # noqa: DJ013
    @other_decorator
    def far_above(sender: object, **facts: object) -> None: ...

    @receiver(signal)
    @other_decorator
    @zk_locked("k", template="k")
    @other_decorator
    def below(sender: object, **facts: object) -> None: ...

    class Listener:
        @zk_locked("k", template="k")
        def method(self, sender: object, **facts: object) -> None: ...

    listener = Listener()
    signal.connect(listener.method)
    signal.connect(lambda **_facts: None)  # gone at once
    try:
        names = {name.rpartition(".")[2] for name in registered_without_lock()}
        (message, *_) = check()
    finally:
        signal.receivers.clear()
    assert names == {"above", "far_above"}
    assert (message.id, message.hint) == (
        "django_zklock.W005",
        "Put @zk_locked below @receiver, directly above the function.",
    )
    del above, far_above, below  # they were alive until now


def test_registrations__two_locks() -> None:
    """Of two locks the one above `@receiver` is missing."""
    signal = Signal()

    @zk_locked("outer", template="outer")
    @receiver(signal)  # noqa: DJ013
    @zk_locked("inner", template="inner")
    def work(sender: object, **facts: object) -> None: ...

    try:
        (message,) = checks.check_registrations()
    finally:
        signal.receivers.clear()
    assert "without its lock 'outer'" in message.msg
    del work


def test_registrations__library() -> None:
    """The same for the tags and filters of templates."""
    library = Library()

    @zk_locked("k", template="k")
    @library.simple_tag
    def tag(value: object) -> None: ...

    @zk_locked("k", template="k")
    @library.filter
    def above(value: object) -> None: ...

    @library.simple_tag
    @zk_locked("k", template="k")
    def below(value: object) -> None: ...

    try:
        names = {name.rpartition(".")[2] for name in registered_without_lock()}
    finally:
        library.tags.clear()
        library.filters.clear()
    assert names == {"tag", "above"}
    del tag, above, below  # they were alive until now


@pytest.mark.celery
def test_registrations__celery() -> None:
    """The same for the signals of Celery."""
    from celery.utils.dispatch import Signal as CelerySignal

    signal = CelerySignal(name="s")

    @zk_locked("k", template="k")
    @signal.connect
    def above(sender: object, **facts: object) -> None: ...

    @signal.connect
    @zk_locked("k", template="k")
    def below(sender: object, **facts: object) -> None: ...

    try:
        names = [name.rpartition(".")[2] for name in registered_without_lock()]
    finally:
        signal.receivers.clear()
    assert names == ["above"]
    del above, below


def test_registrations__templates_are_wrong(settings: Settings) -> None:
    """Where the engines of templates cannot be made, that is the matter of another check."""
    settings.TEMPLATES = [{"BACKEND": "no.such.Engine"}]
    assert checks.check_registrations() == []


def test_command__is_no_text(check: Check, settings: Settings) -> None:
    """A command line of the site that is no text is reported."""
    settings.ZKLOCK_COMMAND = ["weblate"]
    (message,) = check()
    assert (message.id, message.msg) == (
        "django_zklock.E001",
        "ZKLOCK_COMMAND must be a non-empty string, got ['weblate']",
    )
