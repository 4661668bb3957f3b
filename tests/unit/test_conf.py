"""The setting ZKLOCK: what is accepted, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from kazoo.hosts import collect_hosts

from django_zklock import conf, operations
from django_zklock.connections import connections
from django_zklock.exceptions import ZooKeeperUnavailable
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from pytest_django import Settings

HOSTS = "zk1:2181,zk2:2181"
SECRET = "correct horse battery staple"


def configure(settings: Settings, **values: Any) -> None:
    settings.ZKLOCK = {"default": {"HOSTS": HOSTS, **values}}


def test_options__only_hosts(settings: Settings) -> None:
    """Only HOSTS is required."""
    configure(settings)
    options = conf.options("default")
    assert options.connection.hosts == HOSTS
    assert (options.root, options.size, options.strict) == ("/django_zklock", 1, False)
    assert (options.connect_timeout, options.connection.session_timeout) == (5.0, 15.0)
    assert not options.connection.use_tls


def test_options__everything(settings: Settings) -> None:
    """Each setting reaches its field of the options."""
    configure(
        settings,
        HOSTS=["zk1:2181", "zk2"],
        ROOT="/locks/shop",
        SESSION_TIMEOUT=timedelta(seconds=20),
        CONNECT_TIMEOUT=2.5,
        POOL_SIZE=3,
        LOSS_POLICY="strict",
        NAME_CODE=False,
        AUTH=[("digest", "shop:secret")],
        ACL=["world:anyone:r", "digest:shop:hash:cdrwa"],
        TLS={"CA": "ca.pem", "CERT": "c.pem", "KEY": "k.pem", "KEY_PASSWORD": "p", "CHECK_HOSTNAME": False},
        SASL={"mechanism": "DIGEST-MD5"},
        OPTIONS={"randomize_hosts": False},
    )
    options = conf.options("default")
    connection = options.connection
    assert (options.root, options.connect_timeout, options.size, options.strict) == ("/locks/shop", 2.5, 3, True)
    assert not options.name_code
    assert (connection.hosts, connection.session_timeout) == ("zk1:2181,zk2", 20.0)
    assert connection.auth == (("digest", "shop:secret"),)
    assert connection.acl == ("world:anyone:r", "digest:shop:hash:cdrwa")
    assert (connection.tls_ca, connection.tls_cert, connection.tls_key) == ("ca.pem", "c.pem", "k.pem")
    assert (connection.tls_key_password, connection.tls_verify, connection.tls_check_hostname) == ("p", True, False)
    assert connection.use_tls
    assert (connection.sasl, connection.extra) == ({"mechanism": "DIGEST-MD5"}, {"randomize_hosts": False})


def test_options__empty_tls_is_tls(settings: Settings) -> None:
    """An empty TLS dict means TLS with the defaults, not no TLS."""
    configure(settings, TLS={})
    assert conf.options("default").connection.use_tls


def test_aliases__default_first(settings: Settings) -> None:
    """The default alias comes first, the others by name."""
    settings.ZKLOCK = {alias: {"HOSTS": HOSTS} for alias in ("reports", "default", "archive")}
    assert conf.aliases() == ("default", "archive", "reports")
    assert list(connections) == ["default", "archive", "reports"]


@pytest.mark.parametrize("value", [None, {}, [], "zk1:2181", {1: {"HOSTS": HOSTS}}])
def test_setting__missing_or_no_dict(settings: Settings, value: object) -> None:
    """The error names a setting that cannot be used."""
    settings.ZKLOCK = value
    with pytest.raises(ImproperlyConfigured, match="ZKLOCK"):
        conf.aliases()


def test_setting__absent(settings: Settings) -> None:
    """Without the setting, the error shows an example of it."""
    del settings.ZKLOCK
    with pytest.raises(ImproperlyConfigured, match=r"ZKLOCK is not set: ZKLOCK = .* zklock devserver"):
        conf.options("default")


def test_options__unknown_alias(settings: Settings) -> None:
    """The error for an unknown alias names the configured ones."""
    configure(settings)
    with pytest.raises(ImproperlyConfigured, match="no alias 'reports'; configured: 'default'"):
        conf.options("reports")


WRONG: list[tuple[str, list[Any]]] = [
    ("HOSTS", ["", "  ", None, 2181, [], [2181], {"zk1": 2181}]),
    ("HOSTS", ["zk1:", "zk1:x", "zk1:99999", "zk1,,zk2", "/app", "zk1:2181/app,zk2:2181/app"]),
    (
        "HOSTS",
        ["zk1:2181;zk2:2181", "zk1:2181 zk2:2181", "zk1;zk2", "zk1 zk2", "zk1\tzk2:1", "::1", "[::1:2181", "zk@zk1"],
    ),
    ("HOSTS", ["zk1:²", "zk1:2181#a", "zk1:2181?a", "http://zk1:2181", "[zk1]:2181", "zk1:21810:1"]),
    ("HOSTS", ["*:2181", "$ZK_HOST:2181", "{{ zk }}:2181", "server.1=zk1:2181", "zk1:2181'", "(zk1)", "%s:2181"]),
    (
        "HOSTS",
        [
            "127.0.0.1²:2181",
            "\ufeffzk1:2181",
            "zk1\u200b:2181",
            "z\u212a1",
            "\uff5ak1",
            "\u2100",
            "[1:2]:2181",
            "[1.2.3.4]",
        ],
    ),
    ("HOSTS", ["zk1:2181/a/../b", "zk1:2181/.", "zk1:2181//a", "zk1:2181/zookeeper", "zk1:2181/a\0b"]),
    ("ROOT", ["", "django_zklock", "/", "/locks/", "/a//b", None, 1]),
    ("ROOT", ["/zookeeper", "/zookeeper/locks", "/a/../b", "/./a", "/a/..", "/a\0b", "/a\ud800", "/a\U0001f389"]),
    ("SESSION_TIMEOUT", [0, -1, "15", None, True, float("nan"), float("inf"), timedelta(0), []]),
    ("CONNECT_TIMEOUT", [0, -0.5, "5", None, False, float("inf"), {}]),
    ("POOL_SIZE", [0, -1, 101, 1.5, "2", True, None]),
    ("LOSS_POLICY", ["Lease", "", None, True, []]),
    ("IN_TRANSACTION", ["Warn", "", None, True, []]),
    ("GENERATION", [-1, 128, 1.5, "1", True, None]),
    ("NAME_CODE", [None, 0, "no"]),
    ("AUTH", ["digest:u:p", {"digest": "u:p"}, [("digest",)], [("digest", "")], ["digest"], [("digest", 1)], None]),
    ("ACL", ["", "everybody", [], ["world:anyone"], ["world:anyone:x"], [1], 7, None]),
    ("TLS", [True, "ca.pem", ["ca.pem"], {1: "ca.pem"}]),
    ("SASL", [True, "DIGEST-MD5", ["mechanism"], {1: 2}, None]),
    ("OPTIONS", [True, "read_only", [("read_only", True)], None, {"hosts": "zk1"}, {"read_only": True}]),
]


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(name, value, id=f"{name}={value}") for name, values in WRONG for value in values]
)
def test_options__wrong_value(settings: Settings, name: str, value: object) -> None:
    """A value of a wrong type or out of range is refused, and the error names its place."""
    settings.ZKLOCK = {"reports": {"HOSTS": HOSTS, name: value}}
    with pytest.raises(ImproperlyConfigured) as caught:
        conf.options("reports")
    assert f'ZKLOCK["reports"]["{name}"]' in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("CA", ""), ("CERT", 1), ("KEY", None), ("KEY_PASSWORD", 5), ("VERIFY", "no"), ("CHECK_HOSTNAME", 0)],
)
def test_options__wrong_value_in_tls(settings: Settings, name: str, value: object) -> None:
    """The place inside TLS is named too."""
    configure(settings, TLS={name: value})
    with pytest.raises(ImproperlyConfigured) as caught:
        conf.options("default")
    assert f'ZKLOCK["default"]["TLS"]["{name}"]' in str(caught.value)


@pytest.mark.parametrize("value", ["zk1:2181", None, [HOSTS], 3])
def test_options__alias_is_no_dict(settings: Settings, value: object) -> None:
    """The value of an alias must be a dict."""
    settings.ZKLOCK = {"default": value}
    with pytest.raises(ImproperlyConfigured, match='ZKLOCK\\["default"\\] must be a dict'):
        conf.options("default")


def test_options__no_hosts(settings: Settings) -> None:
    """There is no default for HOSTS: a lock on the wrong ensemble protects nothing."""
    settings.ZKLOCK = {"default": {"ROOT": "/locks"}}
    with pytest.raises(ImproperlyConfigured, match='ZKLOCK\\["default"\\]\\["HOSTS"\\] is missing'):
        conf.options("default")


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"HOST": HOSTS}, 'ZKLOCK["default"]["HOST"]'),
        ({"hosts": HOSTS}, 'ZKLOCK["default"]["hosts"]'),
        ({"TLS": {"CERTIFICATE": "c.pem"}}, 'ZKLOCK["default"]["TLS"]["CERTIFICATE"]'),
    ],
)
def test_options__unknown_setting(settings: Settings, values: dict[str, Any], place: str) -> None:
    """A misspelt key is refused, and the error lists the known keys."""
    configure(settings, **values)
    with pytest.raises(ImproperlyConfigured) as caught:
        conf.options("default")
    assert str(caught.value).startswith(f"{place} is not a setting")
    assert "; known are: " in str(caught.value)


@pytest.mark.parametrize("value", [{"HOSTS": HOSTS}, {"SESSION_TIMEOUT": 10, "HOSTS": HOSTS}])
def test_setting__without_an_alias(settings: Settings, value: dict[str, Any]) -> None:
    """Options that are not under an alias give one error that shows where they belong."""
    settings.ZKLOCK = value
    with pytest.raises(ImproperlyConfigured, match=r'is an option and not an alias: ZKLOCK = {"default": {'):
        conf.aliases()


def test_setting__alias_with_the_name_of_an_option(settings: Settings) -> None:
    """An alias may have any name."""
    settings.ZKLOCK = {"TLS": {"HOSTS": HOSTS}}
    assert conf.aliases() == ("TLS",)


@pytest.mark.parametrize(
    "values",
    [
        {"AUTH": [("digest", SECRET, "too much")]},
        {"AUTH": SECRET},
        {"AUTH": [SECRET]},
        {"SASL": [SECRET]},
        {"OPTIONS": SECRET},
        {"AUTH": [("digest", SECRET)], "ROOT": "wrong"},
        {"TLS": {"KEY_PASSWORD": SECRET, "CA": ""}},
        {"TLS": {"KEY_PASSWORD": [SECRET]}},
    ],
)
def test_options__no_credentials_in_messages(settings: Settings, values: dict[str, Any]) -> None:
    """Messages are copied to logs and tickets, so they repeat no value that may be a credential."""
    configure(settings, **values)
    with pytest.raises(ImproperlyConfigured) as caught:
        conf.options("default")
    assert SECRET not in str(caught.value)


def test_setting_changed__new_pools(settings: Settings) -> None:
    """After a change of the setting there are new pools, and the old ones are closed."""
    configure(settings)
    before = connections["default"]
    assert connections["default"] is before
    configure(settings, ROOT="/elsewhere")
    assert connections["default"] is not before
    assert connections["default"].options.root == "/elsewhere"


def test_setting_changed__another_setting(settings: Settings) -> None:
    """A change of another setting leaves the pools unchanged."""
    configure(settings)
    before = connections["default"]
    settings.USE_TZ = False
    assert connections["default"] is before


@pytest.mark.parametrize(
    "hosts",
    [
        "zk1",
        " zk1:2181 , zk_2.example.org:1 ",
        "10.0.0.1:2181,[::1]:2182,[fe80::1%eth0]",
        "ünïcode:21/app/x;y",
        "u\u0308x,हिन्दी.test",
    ],
)
def test_hosts__as_kazoo_reads_them(settings: Settings, hosts: str) -> None:
    """What is accepted can be read by kazoo, and by our own client of four-letter words in the same way."""
    configure(settings, HOSTS=hosts)
    accepted = conf.options("default").connection
    assert accepted.addresses() == collect_hosts(accepted.hosts)[0]


def test_database_options(settings: Settings) -> None:
    """What an alias says of databases is read apart from its pool, which does not have it."""
    settings.ZKLOCK = {
        "default": {"HOSTS": "zk:1"},
        "other": {"HOSTS": "zk:1", "IN_TRANSACTION": "error", "GENERATION": 2},
    }
    assert conf.database_options("default") == conf.DatabaseOptions(in_transaction="warn", generation=0)
    assert conf.database_options("other") == conf.DatabaseOptions(in_transaction="error", generation=2)
    assert conf.options("other") == conf.options("default")
    with pytest.raises(ImproperlyConfigured, match="no alias 'nowhere'"):
        conf.database_options("nowhere")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("HOST", " (did you mean HOSTS?)"), ("root", " (did you mean ROOT?)"), ("LOCATION", ""), ("", "")],
)
def test_did_you_mean(name: str, meant: str) -> None:
    """The nearest known name is offered if it is near."""
    assert conf.did_you_mean(name, ["HOSTS", "ROOT", "OPTIONS"]) == meant


def test_command(settings: Settings) -> None:
    """Messages name the command as the site runs it; of a value that is no text they know nothing."""
    configure(settings, HOSTS=f"127.0.0.1:{free_port()}")
    for line, named in (("weblate", "weblate"), ("python -m shop", "python -m shop"), (5, "manage.py")):
        settings.ZKLOCK_COMMAND = line
        with pytest.raises(
            ZooKeeperUnavailable, match=f"`{named} zklock devserver` .* `{named} zklock doctor` examines"
        ):
            # Long enough for the refusal to be known.
            operations.show_lock("k", timeout=scaled(1))
        settings.ZKLOCK = None
        with pytest.raises(ImproperlyConfigured, match=f"`{named} zklock devserver`"):
            conf.aliases()
        configure(settings, HOSTS=f"127.0.0.1:{free_port()}")
    with pytest.raises(ImproperlyConfigured, match="ZKLOCK_COMMAND must be a non-empty string, got 5"):
        conf.command()
    del settings.ZKLOCK_COMMAND
    assert conf.command() == "python manage.py"
