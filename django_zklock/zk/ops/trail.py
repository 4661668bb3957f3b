"""The trail: which locks were broken or asked for, when, why and by which user, in one node beside the locks of a root.

The node of a lock is deleted a while after its last contender, so it cannot tell in the morning what has happened to
the lock in the night. The trail is added to in the transaction that carries out the action: nothing is in it that was
not done, and what was done is missing only if the ACL does not let the client write there. It has the last
:data:`MAX_ACTIONS` actions on all locks, in at most :data:`MAX_BYTES`: a server refuses a node of 1 MB.

Every client can write anything there, so nothing that is read is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from django_zklock.zk import node_data, paths, scripts, wire
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.pool import Pool
from django_zklock.zk.scripts import RequestScript

MAX_ACTIONS = 200
MAX_BYTES = 100_000
MAX_TEXT = node_data.MAX_BREAK_REASON
# The year 5138; what is later is no time.
MAX_TIME = 1e11
TEXTS = ("what", "key", "lock", "node", "holder", "by", "why", "id")
BROKEN = "broken"
REQUESTED = "release requested"
# What has happened since to a holder that was asked to release.
OUTCOMES = (HOLDS, GONE) = ("still held", "no longer held")


@dataclass(frozen=True, kw_only=True)
class Action:
    """One action on a holder, of which ``node``, ``token`` and ``holder`` are the node's name, token and text.

    ``what`` is "broken" or "release requested", ``at`` the time by the clock of the client that did it, in seconds
    since the Unix epoch, ``by`` the user or the process, and ``why`` the reason. ``lock`` is the name of the lock's
    node. ``outcome`` is what has become of the holder: "broken", "still held", or "no longer held", which is so after a
    release and after the end of its session. ``id`` tells the action from those of other operators at the same time;
    actions of earlier versions have none.
    """

    at: float
    what: str
    key: str
    lock: str
    node: str
    token: int
    holder: str
    by: str
    why: str
    id: str = ""
    outcome: str = ""


def path(pool: Pool) -> str:
    """Return the path of the node with the trail."""
    return f"{pool.options.root}/{paths.TRAIL}"


def added(data: bytes, action: Action) -> bytes:
    """Return the data of the trail with ``action`` at its end, without the oldest ones that are too many.

    An action that is there already, because the answer about it was lost with the connection, is not added again.
    """
    before = decode(data)
    if action.id and any(each.id == action.id for each in before):
        return data
    entries = []
    for each in [*before, action][-MAX_ACTIONS:]:
        values = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in vars(each).items()}
        del values["outcome"]
        if not paths.is_shortened(each.lock):
            # Its name is the key.
            del values["key"]
        entries.append(values)
    while True:
        encoded = json.dumps({"v": node_data.VERSION, "actions": entries}, separators=(",", ":")).encode()
        if len(encoded) <= MAX_BYTES:
            return encoded
        del entries[: max(1, len(entries) // 10)]


def decode(data: bytes) -> list[Action]:
    """Return the actions in the data of the trail, the oldest first, without any that is malformed."""
    values = node_data.load(data[:MAX_BYTES], max_bytes=MAX_BYTES) or {}
    entries = values.get("actions") if values.get("v") == node_data.VERSION else None
    return [action for each in entries if (action := _action(each)) is not None] if isinstance(entries, list) else []


def _action(values: object) -> Action | None:
    if not isinstance(values, Mapping):
        return None
    at, token = values.get("at"), values.get("token")
    # A bool is an int too.
    if not isinstance(at, (int, float)) or isinstance(at, bool) or type(token) is not int:
        return None
    if not (0 <= at < MAX_TIME and 0 <= token < 2**63):
        return None
    texts = {name: values.get(name, "") for name in TEXTS}
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    # These two are names of nodes, as they are.
    lock, node = texts["lock"], texts["node"]
    if texts["what"] not in {BROKEN, REQUESTED} or not all(map(paths.is_name, (lock, node))):
        return None
    texts = {name: escape_controls(text[:MAX_TEXT]) for name, text in texts.items()} | {"lock": lock, "node": node}
    key = texts["key"] if paths.is_shortened(lock) else escape_controls(paths.display_key(lock))
    return Action(**{**texts, "key": key or escape_controls(lock)}, at=float(at), token=token)


def read(pool: Pool, *, lock: str | None = None, timeout: float | None) -> list[Action]:
    """Return the actions on all locks, or on the one whose node has the name ``lock``, the oldest first.

    Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in ``timeout`` seconds, ``ZkLockError`` if it refuses.
    """
    session = pool.inspection()

    def script() -> RequestScript[list[Action]]:
        session.wire.sync(path(pool))
        (found,) = yield from scripts.read_many(session, [wire.Read(path(pool))])
        if isinstance(found, wire.KazooException):
            raise found
        actions = [each for each in decode(found[0] if found else b"") if lock in {None, each.lock}]
        reads = [wire.Read(f"{pool.options.root}/{each.lock}/{each.node}") for each in actions]
        nodes = yield from scripts.read_many(session, reads)
        # The nodes of a hold of several keys have one token, and those of other clients may have a name again.
        broken = {(each.lock, each.node, each.token) for each in actions if each.what == BROKEN}
        outcomes = []
        for action, node in zip(actions, nodes, strict=True):
            holds = isinstance(node, tuple) and node[1].czxid == action.token
            is_broken = (action.lock, action.node, action.token) in broken
            outcomes.append(BROKEN if is_broken else HOLDS if holds else GONE)
        return [replace(action, outcome=outcome) for action, outcome in zip(actions, outcomes, strict=True)]

    return scripts.run(session, script, action=f"read {path(pool)}", timeout=timeout)
