"""From a lock's key to the name of its znode, and back.

ZooKeeper refuses some characters in paths (Programmer's Guide, "The ZooKeeper Data Model"; ``PathUtils.validatePath``).
Java counts in UTF-16, so it refuses every character outside of the basic plane too. These characters, the slash and the
percent sign are percent-escaped, byte by byte of their UTF-8 form.
"""

from __future__ import annotations

import hashlib
import re
from itertools import accumulate
from urllib.parse import unquote

# ZooKeeper keeps its own nodes below it.
RESERVED = "zookeeper"
# Beside the nodes of the queue of a beat's lock: what was sent, by `django_zklock.contrib.celery.beat`. No contender.
BEAT_RECORD = "sent"
# Beside the nodes of all locks: what was done to them, by `django_zklock.zk.ops.trail`. No key has this name, because
# after escaping "%" is followed by two hex digits or by "~".
TRAIL = "%trail"
# And beside them too: which calls of tasks are sent and have not begun, by `django_zklock.zk.ops.sent`.
SENT = "%sent"
MAX_KEY_BYTES = 1024
MAX_NAME_BYTES = 200
PREFIX_BYTES = 140
# After escaping, "%" is always followed by two hex digits. So a shortened name cannot be the name of another key.
HASH_MARK = "%~"

_ILLEGAL = "\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff"
_REFUSED = re.compile(f"[{_ILLEGAL}/%]")
_ILLEGAL_IN_PATH = re.compile(f"[{_ILLEGAL}]")
_ESCAPED_UNIT = re.compile(r"(?:%[0-9A-F]{2})+|.", re.DOTALL)


def check_key(key: object) -> str:
    """Return ``key`` if it can name a lock.

    Raises ``TypeError`` if it is not text, and ``ValueError`` if it is empty, longer than 1 kB in UTF-8, or
    has a surrogate without its partner (such text has no UTF-8 form).
    """
    if not isinstance(key, str):
        raise TypeError(f"a lock key must be a str, got {type(key).__name__}: {key!r}")
    if not key:
        raise ValueError("a lock key must not be empty")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"a lock key must be valid Unicode text, got {key!r}") from error
    if size > MAX_KEY_BYTES:
        raise ValueError(
            f"a lock key must not be longer than {MAX_KEY_BYTES} bytes of UTF-8, got {size}: {key[:60]!r}…"
        )
    return key


def check_template(template: object) -> str | None:
    """Return ``template``; raise ``TypeError`` if it is neither text nor ``None``."""
    if template is not None and not isinstance(template, str):
        raise TypeError(f"the template of a lock must be a str, got {type(template).__name__}: {template!r}")
    return template


def is_root(path: str) -> bool:
    """Whether locks can be kept below ``path``: a legal path, which is not the root nor in ZooKeeper's own part."""
    first, *parts = path.split("/")
    is_legal = _ILLEGAL_IN_PATH.search(path) is None and all(part not in {"", ".", ".."} for part in parts)
    return is_legal and not first and bool(parts) and parts[0] != RESERVED


def is_name(name: str) -> bool:
    """Whether ``name`` is a legal name of a node, of a length that this package makes."""
    is_legal = "/" not in name and _ILLEGAL_IN_PATH.search(name) is None and name not in {".", ".."}
    return is_legal and 0 < len(name) <= MAX_KEY_BYTES


def escape(key: str) -> str:
    """Return the name of the znode for ``key``: readable, legal, and different for different keys."""
    if key in {".", ".."}:
        return "".join(f"%{ord(character):02X}" for character in key)
    name = _REFUSED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), key)
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(key.encode()).hexdigest()[:40]
    return _cut(name) + HASH_MARK + digest


def names_key(key: str, name: str) -> bool:
    """Whether the znode ``name`` is that of ``key``, which may be any text."""
    try:
        return escape(key) == name
    except UnicodeEncodeError:
        return False


def is_shortened(name: str) -> bool:
    """Whether the znode's data has to tell which key is behind its name."""
    return HASH_MARK in name


def unescape(name: str) -> str | None:
    """Return the key behind the znode ``name``; ``None`` if it is shortened."""
    return None if is_shortened(name) else unquote(name, errors="replace")


def display_key(name: str) -> str:
    """Return the key behind the znode ``name``, or as much of the key as a shortened name has."""
    return unquote(name.partition(HASH_MARK)[0], errors="replace")


def _cut(name: str) -> str:
    """Return the first whole characters of ``name``: half an escape would read as another character."""
    units = _ESCAPED_UNIT.findall(name)
    sizes = accumulate(len(unit.encode()) for unit in units)
    return "".join(unit for unit, size in zip(units, sizes, strict=True) if size <= PREFIX_BYTES)
