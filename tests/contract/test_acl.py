"""What each client may do to a node, as the server tells it and as the setting has it."""

from __future__ import annotations

from functools import partial

import pytest
from kazoo.client import KazooClient

from django_zklock.zk import scripts
from django_zklock.zk.pool import Pool
from django_zklock.zk.scripts import RequestScript
from django_zklock.zk.session import Session
from django_zklock.zk.wire import parse_acl


def ask(session: Session, path: str) -> RequestScript[list[str]]:
    (entries,) = yield [partial(session.wire.acl_of, path)]
    return list(entries)


@pytest.mark.parametrize("kind_of_server", ["zookeeper", "testserver"])
@pytest.mark.zookeeper
def test_acl_of(pool: Pool, kazoo_client: KazooClient, root: str) -> None:
    """Every entry of a node is told, in the form of the setting."""
    kazoo_client.create(root, acl=parse_acl(["world:anyone:r", "ip:10.0.0.1:cd", "digest:shop:hash:cdrwa"]))
    session = pool.session(root)
    entries = scripts.run(session, partial(ask, session, root), action="tell", timeout=10)
    # No client but the owner learns the hash.
    assert entries == ["world:anyone:r", "ip:10.0.0.1:cd", "digest:shop:x:cdrwa"]


@pytest.mark.parametrize("entry", ["world:anyone:cdrwa", "digest:shop:h=/+:a", "x509:CN=shop,O=a:b:rw"])
def test_acl_entry(entry: str) -> None:
    """An entry that was read comes out as it was, colons in the id included."""
    assert [str(acl) for acl in parse_acl([entry])] == [entry]
