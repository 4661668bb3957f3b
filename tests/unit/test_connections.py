"""Several aliases: which of them name the same locks, and which hold is the current one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_zklock import LockConflict, current_lock, zk_lock
from django_zklock.connections import connections
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.threads import Runner

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

ROOT = Path(__file__).resolve().parents[2]
HERE = {"HOSTS": "zk1:2181,zk2:2182/app", "ROOT": "/locks"}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"LOSS_POLICY": "strict"}, True),
        ({"HOSTS": " ZK2:2182 , zk1/app"}, True),
        ({"HOSTS": "zk1:2181,zk2:2182", "ROOT": "/app/locks"}, True),
        ({"HOSTS": "zk1:2181/app"}, False),
        ({"HOSTS": "zk1:2181,zk2:2181/app"}, False),
        ({"HOSTS": "zk1:2181,zk2:2182"}, False),
        ({"ROOT": "/other"}, False),
    ],
    ids=str,
)
def test_same_place(settings: Settings, other: dict[str, Any], same: bool) -> None:
    """Two aliases name the same locks if they have the same servers and the same path, in any spelling."""
    settings.ZKLOCK = {"default": HERE, "other": HERE | other}
    assert (connections["default"].tree == connections["other"].tree) is same


def test_same_place__ipv6(settings: Settings) -> None:
    """The colons of an IPv6 address are not taken for a port."""
    settings.ZKLOCK = {"default": {"HOSTS": "[::1]"}, "other": {"HOSTS": "[::1]:2181"}}
    assert connections["default"].tree == connections["other"].tree


def test_same_place__nested(ensemble: Ensemble, settings: Settings) -> None:
    """A nested acquisition through another alias of the same locks is refused instead of waiting for itself."""
    default = settings.ZKLOCK["default"]
    settings.ZKLOCK = {"default": default, "strict": default | {"LOSS_POLICY": "strict"}}
    with zk_lock("k") as held:
        with pytest.raises(LockConflict, match="'default', which names the same ensemble and ROOT as 'strict'"):
            zk_lock("k", using="strict").acquire()
        # Another thread waits, as for any holder.
        assert Runner(zk_lock("k", using="strict").try_acquire).result() is None
        with zk_lock("other", using="strict"):
            held.check()


def test_current_lock__alias(ensemble: Ensemble, settings: Settings) -> None:
    """A key belongs to an alias; without a key and an alias any hold is meant."""
    default = settings.ZKLOCK["default"]
    settings.ZKLOCK = {"default": default, "other": default | {"ROOT": f"{ensemble.root}/other"}}
    with zk_lock("k", using="other") as other:
        assert current_lock("k") is None
        assert current_lock("k", using="other") is current_lock() is other
        assert current_lock(using="default") is None
        with zk_lock("k") as held:
            assert current_lock("k") is current_lock() is current_lock(using="default") is held
            assert current_lock("k", using="other") is other


def test_set_aside(settings: Settings) -> None:
    """A pool that was set aside is not closed with the others, and is in use again afterwards."""
    settings.ZKLOCK = {"default": HERE, "other": HERE}
    aside, other = connections["default"], connections["other"]
    with connections.set_aside([aside]):
        settings.ZKLOCK = {"default": {"HOSTS": "zk9"}}
        assert connections["default"].options.connection.hosts == "zk9"
        settings.ZKLOCK = {"default": HERE, "other": HERE}
    assert connections["default"] is aside
    assert connections["other"] is not other


@pytest.mark.parametrize("apps", [["django_zklock"], []], ids=["installed", "forgotten"])
def test_app_is_not_installed(apps: list[str]) -> None:
    """Without the app in INSTALLED_APPS the first lock warns of what is missing."""
    code = f"""
import django
from django.conf import settings
settings.configure(INSTALLED_APPS={apps}, ZKLOCK={{"default": {{"HOSTS": "zk1:2181"}}}})
django.setup()
from django_zklock import zk_lock
zk_lock("a"), zk_lock("b")
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True, timeout=60
    )
    assert finished.stderr.count('RuntimeWarning: "django_zklock" is not in INSTALLED_APPS') == (not apps)
