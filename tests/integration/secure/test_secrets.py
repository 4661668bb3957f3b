"""Credentials stay out of sight: in ``repr``, in logs of every level, and in Django's error reports."""

from __future__ import annotations

import logging
import sys
import uuid
from binascii import hexlify
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import kazoo.client
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.views.debug import ExceptionReporter
from kazoo.loggingsupport import BLATHER
from kazoo.protocol import serialization

from django_zklock import zk_lock
from django_zklock.connections import connections
from django_zklock.zk.wire import client as wire_client
from django_zklock.zk.wire.client import kazoo_logger
from tests.toolbox.locks.pools import wire_of

if TYPE_CHECKING:
    from pytest_django import Settings

# Made here, as a report quotes the lines of the source.
SECRETS = AUTH, SASL, KEY = [uuid.uuid4().hex for _ in range(3)]


@pytest.fixture
def kind_of_server() -> str:
    return "testserver"


@pytest.fixture
def credentials(zklock: str, settings: Settings) -> None:
    """Set every kind of credential; the server requires only AUTH."""
    settings.ZKLOCK = {
        "default": settings.ZKLOCK["default"]
        | {
            "AUTH": [("digest", f"shop:{AUTH}")],
            "TLS": {"KEY_PASSWORD": KEY},
            "SASL": {"mechanism": "DIGEST-MD5", "username": "shop", "password": SASL},
        }
    }


@pytest.fixture
def auth(zklock: str, settings: Settings) -> None:
    """Set a credential that the server takes."""
    settings.ZKLOCK = {"default": settings.ZKLOCK["default"] | {"AUTH": [("digest", f"shop:{AUTH}")]}}


def secrets_in(text: str) -> list[str]:
    """Return the secrets that are in ``text``."""
    return [secret for secret in SECRETS if secret in text]


def report(call: Callable[[], Any]) -> str:
    """Return the page that Django makes of the error of ``call``: with the variables of every frame."""
    try:
        call()
    except Exception:  # noqa: BLE001 - whatever it is
        return ExceptionReporter(None, *sys.exc_info()).get_traceback_html()
    pytest.fail("there is no error")


@pytest.mark.usefixtures("credentials")
def test_repr() -> None:
    """The options of a pool are shown without their credentials."""
    options = connections["default"].options
    assert "hosts" in repr(options)
    assert secrets_in(repr(options) + str(options) + repr(vars(options.connection))) == []
    # Their values are not changed.
    assert dict(options.connection.auth)["digest"].encode() == f"shop:{AUTH}".encode()


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("module", "place"),
    [(wire_client, "make_handler"), (wire_client, "Connection"), (kazoo.client, "ConnectionHandler")],
)
def test_report__of_a_failure_in_connecting(module: Any, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's report of an error in what makes a connection, of ours or inside of kazoo, shows no credentials."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("no connection today")

    monkeypatch.setattr(module, place, fail)
    page = report(zk_lock("k").acquire)
    assert "no connection today" in page
    assert secrets_in(page) == []


def test_report__of_a_wrong_setting(settings: Settings) -> None:
    """Django's report of a refused setting shows no credentials."""
    settings.ZKLOCK = {
        "default": {"HOSTS": "zk1", "AUTH": [("digest", f"shop:{AUTH}")], "SASL": {"password": SASL}, "SIZE": 1}
        | {"TLS": {"KEY_PASSWORD": KEY, "CAT": ""}}
    }
    page = report(lambda: zk_lock("k"))
    assert ImproperlyConfigured.__name__ in page
    assert secrets_in(page) == []


@pytest.mark.usefixtures("auth")
@pytest.mark.parametrize("level", [logging.DEBUG, BLATHER])
def test_logs(level: int, caplog: pytest.LogCaptureFixture) -> None:
    """No level of any logger writes a credential, or the password of a session."""
    caplog.set_level(level, "django_zklock")
    with zk_lock("k"):
        (session,) = connections["default"].sessions()
        password: bytes = wire_of(session)._client._session_passwd
    connections.close_all()
    assert "Auth(" in caplog.text
    assert secrets_in(caplog.text) == []
    assert hexlify(password).decode() not in caplog.text
    assert repr(password) not in caplog.text
    # The rest is there.
    assert "Answer to GetChildren: " in caplog.text


def test_logs__requests(caplog: pytest.LogCaptureFixture) -> None:
    """A credential stays out of the log of a request, also one that was not made with the options."""
    caplog.set_level(logging.DEBUG, "django_zklock")
    for request in (serialization.Auth(0, "digest", f"shop:{AUTH}"), serialization.SASL(SASL.encode())):
        kazoo_logger.debug("Sending request(xid=%s): %s", -4, request)
    assert "Auth(" in caplog.text
    assert "SASL(" in caplog.text
    assert secrets_in(caplog.text) == []
