"""The requests made of several: ``multi``, of which all happens or nothing, and the parts of ``multiRead``."""

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
    """Find out what a multi changes, and the body of its reply; if one part is refused, it changes nothing.

    Each part meets what those before it have done, so they are done, and undone again: ``tree`` is as it was.
    """
    parts = [PARTS[opcode](opcode, reader) for opcode in opcodes(reader, PARTS)]
    changes: list[Change] = []
    replies: list[bytes] = []
    remembered: dict[str, Znode | None] = {}
    try:
        for part in parts:
            step = part.step(tree, author)
            if step.change is not None:
                tree.remember(step.change.path, remembered)
                tree.anticipate(step.change, zxid, now)
                changes.append(step.change)
            replies.append(success(part.answered_as, step.reply(tree)))
    except RefusedError as error:
        done = len(replies)
        codes = [Code.OK] * done + [error.code] + [Code.RUNTIME_INCONSISTENCY] * (len(parts) - done - 1)
        return (), b"".join(map(failure, codes)) + END
    finally:
        tree.restore(remembered)
    return tuple(changes), b"".join(replies) + END


def opcodes(reader: Reader, allowed: Container[Opcode]) -> Iterator[Opcode]:
    """Read the header of each part, up to the end; what follows a header is the caller's to read."""
    while True:
        number, done, _ = reader.integer(), reader.boolean(), reader.integer()
        if done:
            return
        if number not in allowed:
            msg = f"request {number} among several"
            raise MalformedError(msg)
        yield Opcode(number)


def success(opcode: Opcode, body: bytes) -> bytes:
    """Write what one part has given."""
    return jute.INT.pack(opcode) + b"\0" + jute.INT.pack(0) + body


def failure(code: Code) -> bytes:
    """Write why one part has not happened; with OK, that another one has failed."""
    number = jute.INT.pack(code)
    return jute.INT.pack(Opcode.ERROR) + b"\0" + number + number
