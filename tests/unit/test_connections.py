"""Several aliases: which of them name the same locks, and which hold is the current one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_zklock import LockConflict, LockTimeout, current_lock, zk_lock, zk_locked
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


# A function of the key as ``using``.


def shard(key: str) -> Any:
    """Return the alias that has the locks whose key begins so."""
    return {"a": "default", "b": "other"}.get(key[0])


@pytest.fixture
def shards(ensemble: Ensemble, settings: Settings) -> str:
    """Configure both aliases, and return the root of the second one."""
    default = settings.ZKLOCK["default"]
    settings.ZKLOCK = {"default": default, "other": default | {"ROOT": f"{ensemble.root}/other"}}
    return f"{ensemble.root}/other"


@pytest.mark.usefixtures("shards")
def test_using__function() -> None:
    """A lock is that of the ensemble whose alias the function returns, and so is the current one."""
    with zk_lock("b1", using=shard) as held, zk_lock("a1", using=shard):
        assert current_lock("b1", using=shard) is current_lock("b1", using="other") is held
        assert current_lock("b1") is None
        assert Runner(zk_lock("b1", using="other").try_acquire).result() is None
        assert Runner(zk_lock("a1").try_acquire).result() is None


@pytest.mark.usefixtures("shards")
def test_using__function_of_a_call() -> None:
    """A decorated function has the lock of the ensemble of its key, with or without a loop."""

    @zk_locked("{name}", using=shard)
    def body(name: str) -> bool:
        return current_lock(name, using=shard) is current_lock() is not None

    @zk_locked("{name}", using=shard)
    async def abody(name: str) -> bool:
        return current_lock(name, using="other") is current_lock() is not None

    assert body("a")
    assert body("b")
    assert asyncio.run(abody("b"))
    with zk_lock("b", using="other"), pytest.raises(LockTimeout):
        Runner(lambda: zk_locked("{name}", using=shard, timeout=0)(lambda name: name)("b")).result()


@pytest.mark.usefixtures("shards")
def test_using__advice_of_a_timeout() -> None:
    """The command that the error names looks at the ensemble of the lock."""
    for alias, command in (("default", "zklock show`"), ("other", "zklock show --using other`")):
        with zk_lock("k", using=alias), pytest.raises(LockTimeout, match=f"see `manage.py {command}, or wait"):
            Runner(partial(zk_lock("k", using=alias).acquire, timeout=0)).result()


def test_using__keys_of_one_lock() -> None:
    """All keys of a lock are on one ensemble, because one transaction takes them."""
    assert zk_lock(["a1", "a2"], using=shard).pool is connections["default"]
    with pytest.raises(ValueError, match="must be on one ensemble: 'a1' is on 'default', 'b1' is on 'other'"):
        zk_lock(["a1", "b1"], using=shard)
    with pytest.raises(ValueError, match="must be on one ensemble"):
        zk_locked(["a{x}", "b{x}"], using=shard)(lambda x: x)(1)


@pytest.mark.parametrize("result", [None, 5, ["default"]], ids=str)
def test_using__no_alias(result: Any) -> None:
    """A function that returns something else is named."""
    with pytest.raises(TypeError, match=r"using must return the name of an alias in ZKLOCK, and .* has returned"):
        zk_lock("k", using=lambda _key: result)
    with pytest.raises(TypeError, match="only together with a key"):
        current_lock(using=lambda _key: result)


def test_using__no_function() -> None:
    """What is no alias and cannot be called is named, also for a lock of a block."""
    for using in (None, b"default"):
        with pytest.raises(TypeError, match="using must be the name of an alias in ZKLOCK, or a function of the key"):
            zk_lock("k", using=using)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [b"k", 42, ["k", 7], "", [], "k" * 1025, ["k", "k"]], ids=repr)
def test_using__no_key(key: Any) -> None:
    """What no lock can have as its key raises what it raises without a function, which never sees it."""
    with pytest.raises((TypeError, ValueError)) as plain:
        zk_lock(key)
    with pytest.raises(plain.type) as spread:
        zk_lock(key, using=dict[str, str]().__getitem__)
    assert str(spread.value) == str(plain.value)


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
