"""The setting of a project, redirected to the test server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_zklock import conf
from django_zklock.testing.redirect_settings import redirect, redirected

if TYPE_CHECKING:
    from pytest_django import Settings

HOSTS, ROOT = "127.0.0.1:1234", "/test-1"
# What every alias gets.
REDIRECTED = {"HOSTS": HOSTS, "ROOT": f"{ROOT}/default", "IN_TRANSACTION": "error"}
AUTH = [("digest", "shop:secret")]


def roots(**aliases: dict[str, Any]) -> dict[str, str]:
    return {alias: options["ROOT"] for alias, options in redirect(aliases, HOSTS, ROOT).items()}


def test_redirect__other_options_are_kept() -> None:
    """Servers and root are replaced, times and sizes are kept, and the project's own dict is not changed."""
    mine = {"default": {"HOSTS": "zk1:2181", "ROOT": "/shop", "SESSION_TIMEOUT": 3, "LOSS_POLICY": "strict"}}
    assert redirect(mine, HOSTS, ROOT) == {
        "default": {**REDIRECTED, "SESSION_TIMEOUT": 3, "LOSS_POLICY": "strict"},
    }
    assert mine["default"]["HOSTS"] == "zk1:2181"


@pytest.mark.parametrize("setting", [{}, {"default": {}}, {"default": {"HOSTS": None}}])
def test_redirect__without_servers(setting: dict[str, Any]) -> None:
    """A project without a ZooKeeper in its test settings gets one."""
    assert redirect(setting, HOSTS, ROOT) == {"default": REDIRECTED}


def test_redirect__ensembles_are_apart() -> None:
    """Aliases with other servers, another chroot or another root get different roots."""
    found = roots(
        default={"HOSTS": "zk1:2181"},
        other={"HOSTS": "zk2:2181"},
        chroot={"HOSTS": "zk1:2181/shop"},
        root={"HOSTS": "zk1:2181", "ROOT": "/shop"},
    )
    assert found == {alias: f"{ROOT}/{alias}" for alias in ("default", "other", "chroot", "root")}


def test_redirect__one_ensemble_is_one() -> None:
    """Aliases that share their locks still do, in any notation of their servers."""
    found = roots(
        default={"HOSTS": "zk1:2181,zk2:2181"},
        turned={"HOSTS": "zk2:2181, zk1:2181", "LOSS_POLICY": "strict"},
        listed={"HOSTS": ["zk1:2181", "zk2:2181"], "ROOT": "/django_zklock"},
    )
    assert set(found.values()) == {f"{ROOT}/default"}


def test_redirect__names_that_are_no_paths(settings: Settings) -> None:
    """An alias may have any name."""
    settings.ZKLOCK = redirect({"eu/west": {"HOSTS": "zk1:2181"}}, HOSTS, ROOT)
    assert conf.options("eu/west").root == f"{ROOT}/eu%2Fwest"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"TLS": {"CA": "/none"}, "SASL": {"mechanism": "GSSAPI"}}, {}),
        ({"AUTH": AUTH, "ACL": "creator"}, {"AUTH": AUTH, "ACL": "creator"}),
        ({"AUTH": AUTH, "TLS": {}, "ACL": "creator"}, {"AUTH": AUTH, "ACL": "creator"}),
        ({"TLS": {"CERT": "/none"}, "ACL": "creator"}, {}),
        ({"AUTH": [("sasl", "shop"), *AUTH]}, {"AUTH": AUTH}),
        ({"AUTH": [("x509", "shop")], "ACL": "creator"}, {"AUTH": []}),
        ({"ACL": "open"}, {"ACL": "open"}),
        ({"ACL": ["world:anyone:r", "digest:a:b:cdrwa"]}, {"ACL": ["world:anyone:r", "digest:a:b:cdrwa"]}),
        ({"ACL": ["world:anyone:r", "ip:10.0.0.0/8:cdrwa"]}, {}),
        ({"ACL": ["sasl:shop:cdrwa"]}, {}),
    ],
)
def test_redirect__protection(options: dict[str, Any], kept: dict[str, Any], settings: Settings) -> None:
    """Options that a plain server on the loopback interface supports are kept; the rest locks no client out."""
    found = redirect({"default": {"HOSTS": "zk1:2181", **options}}, HOSTS, ROOT)
    assert found["default"] == {**REDIRECTED, **kept}
    settings.ZKLOCK = found
    conf.options("default")


@pytest.mark.parametrize(
    "options", [None, 5, {"AUTH": "shop:secret"}, {"AUTH": ["digest"]}, {"ACL": 5}, {"ACL": "closed"}, {"HOST": "zk1"}]
)
def test_redirect__mistakes_stay_mistakes(options: object, settings: Settings) -> None:
    """A setting that is refused in production is refused in tests."""
    settings.ZKLOCK = redirect({"default": options}, HOSTS, ROOT)
    with pytest.raises(ImproperlyConfigured, match=r'ZKLOCK\["default"\]'):
        conf.options("default")


def test_redirected__put_back_after_an_error(settings: Settings) -> None:
    """The setting is restored, whatever happens inside."""
    settings.ZKLOCK = {"default": {"HOSTS": "zk1:2181"}}

    def fail() -> None:
        with redirected(HOSTS, ROOT):
            assert conf.options("default").connection.hosts == HOSTS
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert conf.options("default").connection.hosts == "zk1:2181"


def test_redirected__ends_before_what_began_inside(settings: Settings) -> None:
    """The setting is restored even below an override that was started meanwhile and ends later."""
    settings.ZKLOCK = {"default": {"HOSTS": "zk1:2181"}}
    inside = override_settings(DEBUG=True)
    with redirected(HOSTS, ROOT):
        inside.enable()
    assert conf.options("default").connection.hosts == "zk1:2181"
    inside.disable()
    assert conf.options("default").connection.hosts == "zk1:2181"


def test_redirected__project_without_the_setting(settings: Settings) -> None:
    """A project without the setting has it inside, and not afterwards."""
    del settings.ZKLOCK
    with redirected(HOSTS, ROOT):
        assert conf.aliases() == ("default",)
    assert not hasattr(settings, "ZKLOCK")


def test_redirected__setting_that_is_no_dict(settings: Settings) -> None:
    """A setting that is not a dict is not redirected; it is refused as before."""
    settings.ZKLOCK = "zk1:2181"
    with redirected(HOSTS, ROOT), pytest.raises(ImproperlyConfigured, match="ZKLOCK must be a dict"):
        conf.options("default")
