"""The comparison itself: whatever a server answered differently would be seen."""

from __future__ import annotations

import struct
import time
from functools import partial

from django_zklock.testing import ZooKeeperServer
from tests.testing.operations import (
    CREATE2,
    EPHEMERAL,
    SEQUENCE,
    Auth,
    Create,
    GetAcl,
    GetChildren2,
    GetData,
    GetEphemerals,
    Multi,
    SetData,
)
from tests.testing.rawclient import ClosedError, RawClient
from tests.testing.stage import Call, Close, Resume, Settle, Sight, Stage, Step

STEPS: tuple[Step, ...] = (
    Call(0, (Create("~/a/n", EPHEMERAL | SEQUENCE, opcode=CREATE2), GetData("~/b", watch=True), GetEphemerals())),
    Call(0, (GetChildren2("~/a", watch=True), GetAcl("~/b"))),
    Call(1, (GetData("~/a/n0000000001"), SetData("~/b"), Multi((Create("~/c"), SetData("~/a"), Create("~/c"))))),
    Call(1, (Multi((Create("~/c"), SetData("~/a"))),)),
    Call(1, (Auth("none"),)),
    Settle(),
    Resume(1, abrupt=False, wrong=True),
    Close(0),
)
# Frames by connection, in the order of their coming.
Record = list[list[bytes]]


class Recorder(RawClient):
    """A client that keeps what it gets."""

    def __init__(self, record: Record, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._frames: list[bytes] = []
        record.append(self._frames)

    def receive_frame(self) -> bytes:
        frame = super().receive_frame()
        self._frames.append(frame)
        return frame


class Player(RawClient):
    """A client of a record: it gets what another got, and reaches nobody."""

    def __init__(self, record: Record, address: tuple[str, int]) -> None:
        self.events = []
        self._xid = 0
        self._frames = record.pop(0)

    def send_bytes(self, piece: bytes) -> None: ...

    def receive_frame(self) -> bytes:
        if not self._frames:
            raise ClosedError
        return self._frames.pop(0)

    def close(self) -> None: ...


def play(stage: Stage) -> list[Sight]:
    return [*(stage.play(step) for step in STEPS), stage.close()]


def replay(record: Record) -> list[Sight]:
    return play(Stage(("", 0), "stage", partial(Player, [list(frames) for frames in record])))


def play_changed(record: Record, connection: int, number: int, place: int) -> list[Sight] | Exception:
    """Play a record with one bit of one byte turned over."""
    frame = bytearray(record[connection][number])
    frame[place] ^= 1
    changed = [list(frames) for frames in record]
    changed[connection][number] = bytes(frame)
    try:
        return replay(changed)
    # Whatever it is, a test would fail of it.
    except Exception as error:  # noqa: BLE001
        return error


def is_time(frame: bytes, place: int) -> bool:
    """Tell whether the byte is part of a number that is the present in milliseconds."""
    starts = range(max(place - 7, 0), min(place, len(frame) - 8) + 1)
    return any(abs(struct.unpack_from("!q", frame, start)[0] / 1000 - time.time()) < 600 for start in starts)


def is_secret(frame: bytes, place: int) -> bool:
    """Tell whether the byte is part of a new session's number or password."""
    return len(frame) == 37 and place in {*range(8, 16), *range(20, 36)}


def test_comparison__sees_every_byte() -> None:
    """Of all that a server says, only what time it is and how it names a session may differ."""
    record: Record = []
    with ZooKeeperServer() as server:
        stage = Stage(server.address, "stage", partial(Recorder, record))
        expected = play(stage)
        count = len(record)
        stage.abandon()
    del record[count:]
    assert replay(record) == expected
    # The first connection makes the folder.
    unseen = [
        frame
        for connection, frames in enumerate(record[1:], 1)
        for number, frame in enumerate(frames)
        for place in range(len(frame))
        if play_changed(record, connection, number, place) == expected
        and not is_time(frame, place)
        and not is_secret(frame, place)
    ]
    assert unseen == []
