"""The admin's page of the ensembles, on a real ZooKeeper."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from django.template.defaultfilters import floatformat
from django.test import Client

from django_zklock.connections import connections
from tests.toolbox.django.command import Hold
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import GRACE, scaled
from tests.unit.admin.pages import LIST, body_of, member, text_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

pytestmark = [pytest.mark.django_db, pytest.mark.oldest]

URL = f"{LIST}ensembles/"


def test_ensembles__servers_and_sessions(viewer: Client, hold: Hold) -> None:
    """The page shows each server with role and version, and this process's sessions with their timeouts."""
    hold("account:17")
    pool = connections["default"]
    (session,) = pool.sessions()
    text = text_of(viewer.get(URL))
    assert " default Servers " in text
    assert f" {pool.options.connection.hosts} standalone 3." in text
    assert f" default-0 0x{session.id:x} {session.wire.server} {floatformat(scaled(6), -3)} " in text


def test_ensembles__no_session_yet(viewer: Client, zklock: str) -> None:
    """The page opens no session."""
    assert "None yet" in text_of(viewer.get(URL))


def test_ensembles__unreachable(viewer: Client, settings: Settings, hold: Hold) -> None:
    """A server that does not answer is shown with the reason in time, beside the others."""
    away = f"127.0.0.1:{free_port()}"
    settings.ZKLOCK = settings.ZKLOCK | {"gone": {"HOSTS": away, "CONNECT_TIMEOUT": 0.5}}
    began = time.monotonic()
    text = text_of(viewer.get(URL))
    assert time.monotonic() - began < 4 + GRACE
    assert f" {away} No answer: " in text
    assert " standalone " in text


def test_ensembles__session_without_connection(viewer: Client, settings: Settings) -> None:
    """A session without a connection is shown as such."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.3}}
    viewer.get(LIST)
    assert " default-inspection \u2013 not connected " in text_of(viewer.get(URL))


def test_ensembles__wrong_setting(viewer: Client, settings: Settings) -> None:
    """A wrong setting is shown as a message."""
    settings.ZKLOCK = {"default": {"HOSTS": ""}}
    assert 'ZKLOCK["default"]["HOSTS"] must be a non-empty string' in text_of(viewer.get(URL))
    settings.ZKLOCK = None
    assert "ZKLOCK is not set" in text_of(viewer.get(URL))


def test_ensembles__permission(client: Client, viewer: Client, zklock: str) -> None:
    """The list links to the page, which needs the permission to view locks."""
    assert f'href="{URL}"' in body_of(viewer.get(LIST))
    client.force_login(member("staff"))
    assert client.get(URL).status_code == 403
    client.logout()
    assert client.get(URL).status_code == 302
