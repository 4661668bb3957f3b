"""Requests with several parts: ``multi``, which is atomic, and ``multiRead``."""

from __future__ import annotations

from collections.abc import Container, Iterator

from . import jute
from .jute import MalformedError, Reader
from .protocol import Code, Opcode, RefusedError
from .tree import Change, Tree
from .writes import PARTS, Author
from .znode import Znode

END = jute.INT.pack(-1) + b"\1" + jute.INT.pack(-1)


def attempt(reader: Reader, tree: Tree, author: Author, zxid: int, now: int) -> tuple[tuple[Change, ...], bytes]:
    """Return the changes of a multi and the body of its reply; if one part is refused, there are no changes.

    Each part sees the changes of the parts before it. So they are applied to ``tree``, and undone at the end.
    """
    parts = [PARTS[opcode](opcode, reader) for opcode in opcodes(reader, PARTS)]
    changes: list[Change] = []
    replies: list[bytes] = []
    saved: dict[str, Znode | None] = {}
    try:
        for part in parts:
            step = part.step(tree, author)
            if step.change is not None:
                tree.save(step.change.path, saved)
                tree.anticipate(step.change, zxid, now)
                changes.append(step.change)
            replies.append(success(part.answered_as, step.reply(tree)))
    except RefusedError as error:
        done = len(replies)
        codes = [Code.OK] * done + [error.code] + [Code.RUNTIME_INCONSISTENCY] * (len(parts) - done - 1)
        return (), b"".join(map(failure, codes)) + END
    finally:
        tree.restore(saved)
    return tuple(changes), b"".join(replies) + END


def opcodes(reader: Reader, allowed: Container[Opcode]) -> Iterator[Opcode]:
    """Read the header of each part, up to the end; the caller reads the record after each header."""
    while True:
        number, done, _ = reader.integer(), reader.boolean(), reader.integer()
        if done:
            return
        if number not in allowed:
            msg = f"request {number} among several"
            raise MalformedError(msg)
        yield Opcode(number)


def success(opcode: Opcode, body: bytes) -> bytes:
    """Encode the result of one part."""
    return jute.INT.pack(opcode) + b"\0" + jute.INT.pack(0) + body


def failure(code: Code) -> bytes:
    """Encode the error of one part; OK means that another part has failed."""
    number = jute.INT.pack(code)
    return jute.INT.pack(Opcode.ERROR) + b"\0" + number + number
