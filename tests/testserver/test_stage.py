"""The comparison itself: every difference between the servers is found."""

from __future__ import annotations

import struct
import time
from functools import partial

from django_zklock.testing import ZooKeeperServer
from tests.testserver.comparison import Call, Close, Observed, Resume, Settle, Stage, Step
from tests.toolbox.protocol.operations import (
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
from tests.toolbox.protocol.raw_client import ClosedError, RawClient

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
# Frames by connection, in their order.
Record = list[list[bytes]]


class Recorder(RawClient):
    """A client that keeps its frames."""

    def __init__(self, record: Record, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._frames: list[bytes] = []
        record.append(self._frames)

    def receive_frame(self) -> bytes:
        frame = super().receive_frame()
        self._frames.append(frame)
        return frame


class Player(RawClient):
    """A client with recorded frames: it gets the frames of another client, and is not connected."""

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


def play(stage: Stage) -> list[Observed]:
    return [*(stage.play(step) for step in STEPS), stage.close()]


def replay(record: Record) -> list[Observed]:
    return play(Stage(("", 0), "stage", partial(Player, [list(frames) for frames in record])))


def play_changed(record: Record, connection: int, number: int, place: int) -> list[Observed] | Exception:
    """Replay a record with one bit of one byte inverted."""
    frame = bytearray(record[connection][number])
    frame[place] ^= 1
    changed = [list(frames) for frames in record]
    changed[connection][number] = bytes(frame)
    try:
        return replay(changed)
    # Any exception: a test would fail with it.
    except Exception as error:  # noqa: BLE001
        return error


def is_time(frame: bytes, place: int) -> bool:
    """Return whether the byte belongs to a number that is the present time in milliseconds."""
    starts = range(max(place - 7, 0), min(place, len(frame) - 8) + 1)
    return any(abs(struct.unpack_from("!q", frame, start)[0] / 1000 - time.time()) < 600 for start in starts)


def is_secret(frame: bytes, place: int) -> bool:
    """Return whether the byte belongs to the number or the password of a new session."""
    return len(frame) == 37 and place in {*range(8, 16), *range(20, 36)}


def test_comparison__sees_every_byte() -> None:
    """Only times and the numbers of sessions may differ between servers."""
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
