"""The model without a table."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.core.management import call_command

from django_zklock.models import Lock
from django_zklock.zk.ops.snapshots import LockSnapshot
from tests.toolbox.timing import scaled

pytestmark = pytest.mark.oldest

MANAGE = Path(__file__).resolve().parents[2] / "testproject" / "manage.py"


def test_makemigrations__nothing_to_do() -> None:
    """The migration that ships is complete: users' `makemigrations --check` stays quiet."""
    # In a new process, because other tests of this process create models without migrations.
    run = subprocess.run(
        [sys.executable, MANAGE, "makemigrations", "--check", "--dry-run"],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.django_db
def test_permissions() -> None:
    """The permissions are view, break and revoke, and not add or delete, as there is no table."""
    permissions = Permission.objects.filter(content_type__app_label="django_zklock")
    assert {permission.codename for permission in permissions} == {"view_lock", "break_lock", "revoke_lock"}


@pytest.mark.django_db
@pytest.mark.parametrize("options", [[], ["--all"]])
def test_dumpdata__finds_no_locks(options: list[str]) -> None:
    """`dumpdata` reads every model, and must not fail for one without a table."""
    out = StringIO()
    call_command("dumpdata", "django_zklock", *options, stdout=out)
    assert json.loads(out.getvalue()) == []


@pytest.mark.django_db
def test_objects__empty() -> None:
    """A query of the model returns nothing instead of a database error."""
    assert list(Lock.objects.all()) == []
    assert not Lock.objects.filter(key="invoice:42").exists()


def test_from_snapshot__longest_name() -> None:
    """The id has room for the longest alias that is sensible and the longest znode name."""
    snapshot = LockSnapshot(key="k" * 1024, path=f"/django_zklock/{'n' * 200}")
    lock = Lock.from_snapshot("default", snapshot)
    lock.clean_fields()
    assert (lock.pk, str(lock), lock.snapshot) == (f"default/{'n' * 200}", "k" * 1024, snapshot)


@pytest.mark.parametrize(
    ("id", "key", "legal"),
    [
        ("default/invoice:42", "invoice:42", True),
        ("default/a%2Fb", "a/b", True),
        (f"default/{'n' * 140}%~{'0' * 40}", "n" * 140, True),
        ("default/a/b", "a/b", False),
        ("default/..", "..", False),
        ("default/\0", "\0", False),
        ("default", "", False),
    ],
)
def test_from_id__without_asking(id: str, key: str, legal: bool) -> None:  # noqa: A002
    """From an id the alias, the znode and the readable part of the key are known."""
    lock = Lock.from_id(id)
    assert (lock.pk, lock.alias, lock.key, lock.has_legal_name) == (id, "default", key, legal)


def test_str__harmless() -> None:
    """The admin shows it in places of its own: it turns no text around."""
    assert str(Lock(key="\u202egpj.exe")) == "\\u202egpj.exe"


def test_app__names() -> None:
    """What the admin's index shows."""
    assert apps.get_app_config("django_zklock").verbose_name == "ZooKeeper locks"
    assert Lock._meta.verbose_name_plural == "locks"
