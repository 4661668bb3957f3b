"""The replies to requests, on the real server and on the test server: details that are easy to get wrong."""

from __future__ import annotations

import pytest

from tests.testserver.sequential_client import Visitor
from tests.testserver.server_area import Scene
from tests.toolbox.protocol.jute import Acl, Path, Stat, Value
from tests.toolbox.protocol.operations import (
    ANN,
    CREATE,
    CREATE2,
    CREATE_CONTAINER,
    CREATE_TTL,
    EPHEMERAL,
    MULTI_READ,
    OPEN,
    SEQUENCE,
    Auth,
    Check,
    CountDescendants,
    Create,
    Cut,
    Delete,
    Exists,
    GetAcl,
    GetChildren,
    GetChildren2,
    GetData,
    GetEphemerals,
    Multi,
    Operation,
    Ping,
    Raw,
    SetAcl,
    SetData,
    Sync,
    WhoAmI,
)

OK = 0
INCONSISTENT, MARSHALLING, UNIMPLEMENTED, BAD_ARGUMENTS = -2, -5, -6, -8
NO_NODE, NO_AUTH, BAD_VERSION, EPHEMERAL_PARENT = -101, -102, -103, -108
EXISTS, NOT_EMPTY, INVALID_ACL, AUTH_FAILED = -110, -111, -114, -115
END: Value = ("end", -1, -1)


def stat(visitor: Visitor, path: Path) -> Stat:
    value = visitor.ask(Exists(path)).value
    assert isinstance(value, Stat), value
    return value


# Zxids.


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("~/new"), OK),
        (Create("~"), EXISTS),
        (Create("~/none/new"), NO_NODE),
        (Create("new"), BAD_ARGUMENTS),
        (Create("~/new", flags=7), BAD_ARGUMENTS),
        (Create("~/new", acl=()), INVALID_ACL),
        (Cut(Create("~/new")), MARSHALLING),
        (Delete("~/none"), NO_NODE),
        (Delete("~", version=9), BAD_VERSION),
        (SetData("~"), OK),
        (SetData("~", version=9), BAD_VERSION),
        (SetAcl("~", OPEN), OK),
        (SetAcl("~", ()), INVALID_ACL),
        (Multi(()), OK),
        (Multi((Delete("~/none"),)), OK),
        (Multi((Sync("~"),)), MARSHALLING),
    ],
    ids=str,
)
def test_write__takes_a_zxid(either: Scene, operation: Operation, error: int) -> None:
    """A write takes one zxid, even if it is refused or malformed, and its reply has that zxid."""
    visitor = either.visitor()
    before = visitor.zxid()
    answer = visitor.ask(operation)
    assert (answer.error, answer.zxid, visitor.zxid()) == (error, before + 1, before + 1)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Exists("~"), OK),
        (Exists("~/none", watch=True), NO_NODE),
        (GetData("~"), OK),
        (GetChildren("~"), OK),
        (GetAcl("~"), OK),
        (Sync("~"), OK),
        (WhoAmI(), OK),
        (GetEphemerals(), OK),
        (Multi((GetData("~"),), MULTI_READ), OK),
        (Cut(Exists("~")), MARSHALLING),
    ],
    ids=str,
)
def test_read__takes_none(either: Scene, operation: Operation, error: int) -> None:
    """The reply to a read has the last zxid."""
    visitor = either.visitor()
    before = visitor.zxid()
    answer = visitor.ask(operation)
    assert (answer.error, answer.zxid, visitor.zxid()) == (error, before, before)


def test_session__takes_a_zxid_at_both_ends(either: Scene) -> None:
    """The start and the end of a session take one zxid each; a new connection of the session takes none."""
    observer = either.visitor()
    before = observer.zxid()
    visitor = either.visitor()
    assert observer.zxid() == before + 1
    visitor = either.resume(visitor)
    assert observer.zxid() == before + 1
    assert visitor.ask(Raw(-11)).zxid == before + 2
    assert visitor.client.is_closed()


# Nodes.


@pytest.mark.parametrize(
    ("path", "versions", "children", "access"),
    [
        ("/zookeeper", (0, -2, 0), ("config", "quota"), 31),
        ("/zookeeper/config", (0, 0, -1), (), 1),
        ("/zookeeper/quota", (0, 0, 0), (), 31),
    ],
)
def test_own_nodes(
    either: Scene, path: str, versions: tuple[int, int, int], children: tuple[str, ...], access: int
) -> None:
    """The server's own nodes have fixed initial values and cannot be deleted."""
    visitor = either.visitor()
    its = stat(visitor, path)
    assert (its.czxid, its.mzxid, its.pzxid, its.ctime, its.mtime, its.owner) == (0, 0, 0, 0, 0, 0)
    assert (its.version, its.cversion, its.aversion) == versions
    assert visitor.ask(GetData(path)).value == (b"", its)
    assert visitor.ask(GetChildren2(path)).value == (children, its)
    assert visitor.ask(GetAcl(path)).value == (((access, "world", "anyone"),), its)
    assert visitor.error(Delete(path)) == BAD_ARGUMENTS


def test_stat__counts(either: Scene) -> None:
    """The version of the children is twice the number of creations minus the number of children."""
    visitor = either.visitor()
    created = visitor.ask(Create("~/a", data=b"abc")).zxid
    first = stat(visitor, "~/a")
    assert (first.czxid, first.mzxid, first.pzxid, first.ctime) == (created, created, created, first.mtime)
    assert (first.version, first.cversion, first.aversion, first.length, first.children) == (0, 0, 0, 3, 0)
    for name in ("b", "c"):
        visitor.ask(Create(f"~/a/{name}"))
    deleted = visitor.ask(Delete("~/a/b")).zxid
    its = stat(visitor, "~/a")
    assert (its.cversion, its.children, its.pzxid, its.mzxid, its.version) == (3, 1, deleted, created, 0)
    changed = visitor.ask(SetData("~/a", None)).zxid
    visitor.ask(SetData("~/a/c"))
    visitor.ask(SetAcl("~/a", OPEN))
    its = stat(visitor, "~/a")
    assert (its.mzxid, its.pzxid, its.version, its.aversion, its.length) == (changed, deleted, 1, 1, 0)


def test_data__none_is_not_empty(either: Scene) -> None:
    """A node without data differs from a node with empty data."""
    visitor = either.visitor()
    visitor.ask(Create("~/none", data=None))
    visitor.ask(Create("~/empty"))
    for path, expected in (("~/none", None), ("~/empty", b"")):
        assert visitor.ask(GetData(path)).value == (expected, stat(visitor, path))


@pytest.mark.parametrize(
    ("opcode", "flags", "made"),
    [
        (CREATE, 0, "~/n"),
        (CREATE, EPHEMERAL, "~/n"),
        (CREATE, SEQUENCE, "~/n0000000000"),
        (CREATE2, EPHEMERAL | SEQUENCE, "~/n0000000000"),
        (CREATE, 4, "~/n"),
        (CREATE2, 4, "~/n"),
        (CREATE_CONTAINER, 4, "~/n"),
        # The opcode makes the container; of the flags only the sequence counts.
        (CREATE_CONTAINER, EPHEMERAL | SEQUENCE, "~/n0000000000"),
        (CREATE_TTL, 5, "~/n"),
        (CREATE_TTL, 6, "~/n0000000000"),
    ],
)
def test_create__kinds(either: Scene, opcode: int, flags: int, made: str) -> None:
    """Only ephemeral nodes show an owner: containers and TTL nodes hide it."""
    visitor = either.visitor()
    answer = visitor.ask(Create("~/n", flags, opcode=opcode))
    its = stat(visitor, made)
    assert answer.value == (made if opcode == CREATE else (made, its))
    ephemeral = flags & EPHEMERAL and opcode in {CREATE, CREATE2}
    assert its.owner == (visitor.greeting.session if ephemeral else 0)
    assert visitor.ask(GetEphemerals("~/n")).value == ((made,) if ephemeral else ())
    assert visitor.error(Create(f"{made}/child")) == (EPHEMERAL_PARENT if ephemeral else OK)


@pytest.mark.parametrize(
    ("opcode", "flags", "ttl"),
    [
        (CREATE, 5, 0),
        (CREATE, 7, 0),
        (CREATE2, -1, 0),
        (CREATE_CONTAINER, 6, 0),
        (CREATE_TTL, 0, 0),
        (CREATE_TTL, 4, 1000),
        (CREATE_TTL, 5, 0),
        (CREATE_TTL, 6, -1),
        (CREATE_TTL, 5, 2**40),
    ],
)
def test_create__wrong_kind(either: Scene, opcode: int, flags: int, ttl: int) -> None:
    """A mode that the opcode does not support, or a time to live without a TTL mode, is a bad argument."""
    assert either.visitor().error(Create("~/n", flags, opcode=opcode, ttl=ttl)) == BAD_ARGUMENTS


# Paths.


@pytest.mark.parametrize(
    ("path", "create", "sequence", "delete", "change", "exists"),
    [
        ("", BAD_ARGUMENTS, BAD_ARGUMENTS, BAD_ARGUMENTS, BAD_ARGUMENTS, OK),
        ("a", BAD_ARGUMENTS, BAD_ARGUMENTS, BAD_ARGUMENTS, BAD_ARGUMENTS, NO_NODE),
        ("//", BAD_ARGUMENTS, BAD_ARGUMENTS, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/", BAD_ARGUMENTS, OK, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/.", BAD_ARGUMENTS, OK, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/../a", NO_NODE, NO_NODE, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~//a", NO_NODE, NO_NODE, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/a\0", BAD_ARGUMENTS, BAD_ARGUMENTS, BAD_ARGUMENTS, BAD_ARGUMENTS, BAD_ARGUMENTS),
        ("~/\x1f", BAD_ARGUMENTS, BAD_ARGUMENTS, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/\x7f", BAD_ARGUMENTS, BAD_ARGUMENTS, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/\ue000", BAD_ARGUMENTS, BAD_ARGUMENTS, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/\ufff0", BAD_ARGUMENTS, BAD_ARGUMENTS, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/\U0001f600", BAD_ARGUMENTS, BAD_ARGUMENTS, NO_NODE, BAD_ARGUMENTS, NO_NODE),
        ("~/...", OK, OK, OK, NO_NODE, NO_NODE),
        ("~/\xa0", OK, OK, OK, NO_NODE, NO_NODE),
        ("~/\ufeff", OK, OK, OK, NO_NODE, NO_NODE),
        (None, MARSHALLING, MARSHALLING, MARSHALLING, BAD_ARGUMENTS, MARSHALLING),
    ],
)
def test_path(either: Scene, path: Path, create: int, sequence: int, delete: int, change: int, exists: int) -> None:
    """Each request checks paths in its own way."""
    visitor = either.visitor()
    answers = [
        visitor.error(Exists(path)),
        visitor.error(SetData(path)),
        visitor.error(SetAcl(path, OPEN)),
        visitor.error(Create(path)),
        visitor.error(Delete(path)),
        visitor.error(Create(path, SEQUENCE)),
    ]
    assert answers == [exists, change, change, create, delete, sequence]


# Sequences.


def test_sequence__counts_creations(either: Scene) -> None:
    """The sequence number is the number of children ever created, by any request."""
    visitor = either.visitor()
    for operation in (Create("~/a"), Create("~/a"), Delete("~/a"), Create("~/b", SEQUENCE), Create("~/c/d")):
        visitor.ask(operation)
    assert visitor.ask(Create("~/", SEQUENCE)).value == "~/0000000002"


def test_sequence__sticks_at_the_end(either: Scene) -> None:
    """From 2147483647 on every child gets that number, and the Stat of the parent counts no more creations."""
    folder, visitor = either.count(2**31 - 3), either.visitor()
    sequential = Create(f"{folder}/n", SEQUENCE)
    made = [visitor.ask(sequential) for _ in range(4)]
    assert [answer.error for answer in made] == [OK, OK, OK, EXISTS]
    assert [answer.value for answer in made[:3]] == [f"{folder}/n{2**31 - 3 + each}" for each in range(3)]
    its = stat(visitor, folder)
    assert (its.children, its.cversion, its.pzxid) == (3, -5, made[1].zxid)
    assert visitor.ask(Create(f"{folder}/other", SEQUENCE)).value == f"{folder}/other{2**31 - 1}"
    assert visitor.error(Delete(f"{folder}/n{2**31 - 1}")) == OK
    assert visitor.ask(sequential).value == f"{folder}/n{2**31 - 1}"


def test_sequence__passes_the_end_inside_a_multi(either: Scene) -> None:
    """Within one multi the counter overflows to the smallest 32-bit number; after it the counter is at its maximum."""
    folder, visitor = either.count(2**31 - 1), either.visitor()
    names = [f"{folder}/n{2**31 - 1}", f"{folder}/n-{2**31}", f"{folder}/n-{2**31 - 1}"]
    parts = tuple(Create(f"{folder}/n", SEQUENCE) for _ in names)
    assert visitor.ask(Multi(parts)).value == (*((CREATE, OK, name) for name in names), END)
    assert visitor.ask(Create(f"{folder}/m", SEQUENCE)).value == f"{folder}/m{2**31 - 1}"


def test_sequence__below_nought(either: Scene) -> None:
    """A sign takes one of the ten characters."""
    folder, visitor = either.count(-2), either.visitor()
    made = [visitor.ask(Create(f"{folder}/n", SEQUENCE)).value for _ in range(3)]
    assert made == [f"{folder}/n{number}" for number in ("-000000002", "-000000001", "0000000000")]


# Several operations in one.


def test_multi__kinds_of_results(either: Scene) -> None:
    """The type of a result depends on the flags, so create2 is answered as create; all parts share one zxid."""
    visitor = either.visitor()
    answer = visitor.ask(
        Multi(
            (
                Create("~/a", opcode=CREATE2),
                Create("~/k", 4),
                Create("~/n", opcode=CREATE_CONTAINER),
                Create("~/t", 5, opcode=CREATE_TTL),
                SetData("~/a"),
                Check("~/a", 1),
                Delete("~/n"),
            )
        )
    )
    container, aged, changed = (stat(visitor, path) for path in ("~/k", "~/t", "~/a"))
    assert {container.czxid, aged.czxid, changed.czxid, changed.mzxid} == {answer.zxid}
    assert answer.value == (
        (CREATE, OK, "~/a"),
        (CREATE2, OK, ("~/k", container)),
        (CREATE, OK, "~/n"),
        (CREATE2, OK, ("~/t", aged)),
        (SetData.opcode, OK, changed),
        (Check.opcode, OK, None),
        (Delete.opcode, OK, None),
        END,
    )


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (Delete("~/none"), NO_NODE),
        (Create("~/a"), EXISTS),
        (Check("~/a", 1), BAD_VERSION),
        (Create("~/b", 9), BAD_ARGUMENTS),
        (Create("~/b", acl=()), INVALID_ACL),
        (Create("b"), BAD_ARGUMENTS),
    ],
    ids=str,
)
def test_multi__fails_as_one(either: Scene, part: Operation, error: int) -> None:
    """The reply itself has no error; its parts show which one has failed, and nothing is changed."""
    visitor = either.visitor()
    answer = visitor.ask(Multi((Create("~/a"), Create("~/a/", SEQUENCE), part, Create("~/z"))))
    assert answer.error == OK
    codes = (OK, OK, error, INCONSISTENT)
    assert answer.value == (*((-1, code, code) for code in codes), END)
    assert visitor.ask(GetChildren("~")).value == ()
    assert visitor.ask(Create("~/", SEQUENCE)).value == "~/0000000000"


def test_multi__without_parts(either: Scene) -> None:
    """A multi without parts succeeds."""
    assert either.visitor().ask(Multi(())).value == (END,)


@pytest.mark.parametrize("part", [SetAcl("~", OPEN), GetData("~"), Sync("~"), Ping(), Create("~/n", 5)], ids=str)
def test_multi__knows_no_such_part(either: Scene, part: Operation) -> None:
    """A part that a multi cannot contain makes the whole request malformed."""
    visitor = either.visitor()
    assert visitor.error(Multi((Create("~/a"), part))) == MARSHALLING
    assert visitor.error(Exists("~/a")) == NO_NODE


def test_multi_read__goes_on_after_an_error(either: Scene) -> None:
    """Each part is answered separately, and none sets a watch."""
    visitor = either.visitor()
    visitor.ask(Create("~/a", data=b"x"))
    its = stat(visitor, "~/a")
    parts = (GetData("~/none"), GetData("~/a", watch=True), GetChildren("~", watch=True))
    assert visitor.ask(Multi(parts, MULTI_READ)).value == (
        (-1, NO_NODE, NO_NODE),
        (GetData.opcode, OK, (b"x", its)),
        (GetChildren.opcode, OK, ("a",)),
        END,
    )
    visitor.ask(SetData("~/a"))
    visitor.ask(Delete("~/a"))
    assert visitor.events() == []


# Access control lists.


@pytest.mark.parametrize(
    ("acl", "kept"),
    [
        ((), None),
        (None, None),
        (((31, "world", "someone"),), None),
        (((31, "none", "x"),), None),
        (((31, None, None),), None),
        (((31, "sasl", "ann"),), None),
        (((31, "digest", "ann"),), None),
        (((31, "digest", "ann:"),), None),
        (((31, "digest", "ann:a:a"),), None),
        (((31, "ip", "::1"),), None),
        (((31, "ip", "127.0.0.1/33"),), None),
        (((31, "ip", "localhost"),), None),
        (((31, "world", "anyone"), (31, "none", "x")), None),
        (((31, "ip", "127.0.0.0/8"),), ((31, "ip", "127.0.0.0/8"),)),
        (((-1, "world", "anyone"),), ((-1, "world", "anyone"),)),
        (
            ((1, "ip", "10.0.0.1"), (31, "world", "anyone"), (1, "ip", "10.0.0.1")),
            ((1, "ip", "10.0.0.1"), (31, "world", "anyone")),
        ),
        (((31, "auth", "whatever"),), ((31, "digest", ANN),)),
        (((31, "auth", None),), ((31, "digest", ANN),)),
        (((31, "digest", ANN), (31, "auth", "")), ((31, "digest", ANN), (31, "digest", ANN))),
    ],
)
def test_acl(either: Scene, acl: Acl, kept: Acl) -> None:
    """A list is stored with "auth" replaced by the identities and without duplicates, or it is refused."""
    visitor = either.visitor()
    visitor.ask(Auth())
    assert visitor.error(Create("~/a", acl=acl)) == (INVALID_ACL if kept is None else OK)
    if kept is not None:
        assert visitor.ask(GetAcl("~/a")).value == (kept, stat(visitor, "~/a"))


def test_acl__auth_of_nobody(either: Scene) -> None:
    """A client without an identity cannot create a node for "auth"."""
    assert either.visitor().error(Create("~/a", acl=((31, "auth", ""),))) == INVALID_ACL


@pytest.mark.parametrize("scheme", ["world", "digest", "ip"])
def test_acl__without_an_id(either: Scene, scheme: str) -> None:
    """A scheme that checks the id needs one."""
    assert either.visitor().error(Create("~/a", acl=((31, scheme, None),))) == MARSHALLING


REQUESTS: dict[Operation, int] = {
    Exists("~/a"): 0,
    Sync("~/a"): 0,
    GetData("~/a"): 1,
    GetChildren("~/a"): 1,
    GetChildren2("~/a"): 1,
    CountDescendants("~/a"): 1,
    GetAcl("~/a"): 1 | 16,
    SetData("~/a"): 2,
    Create("~/a/new"): 4,
    Delete("~/a/child"): 8,
}


@pytest.mark.parametrize("perms", [0, 1, 2, 4, 8, 16, 31])
def test_permissions(either: Scene, perms: int) -> None:
    """Each request needs one permission, of the node or of its parent; some need none."""
    owner, other = either.visitor(), either.visitor()
    owner.ask(Auth())
    owner.ask(Create("~/a", acl=((31, "auth", ""), (perms, "world", "anyone"))))
    owner.ask(Create("~/a/child"))
    answers = {operation: other.error(operation) for operation in REQUESTS}
    assert answers == {
        operation: OK if not needed or needed & perms else NO_AUTH for operation, needed in REQUESTS.items()
    }
    # The permission is checked before the version.
    assert other.error(SetAcl("~/a", OPEN, version=9)) == (BAD_VERSION if perms & 16 else NO_AUTH)
    assert other.error(Delete("~/a/none")) == (NO_NODE if perms & 8 else NO_AUTH)


def test_acl__hides_hashes(either: Scene) -> None:
    """A client that may read a node but not change its list does not get hashes."""
    visitor = either.visitor()
    visitor.ask(Auth())
    visitor.ask(Create("~/a", acl=((1, "auth", ""), (1, "ip", "127.0.0.1"))))
    assert visitor.ask(GetAcl("~/a")).value == (((1, "digest", "ann:x"), (1, "ip", "127.0.0.1")), stat(visitor, "~/a"))


@pytest.mark.parametrize(
    ("credential", "user"), [(b"ann:a", "ann"), (b"ann", "ann"), (b"ann:a:b", "ann"), (b":", ""), (b"", "")]
)
def test_auth(either: Scene, credential: bytes, user: str) -> None:
    """A digest accepts any bytes, and whoAmI returns the part before the colon."""
    visitor = either.visitor()
    answer = visitor.ask(Auth(credential=credential))
    assert (answer.error, answer.zxid) == (OK, 0)
    assert visitor.ask(WhoAmI()).value == (("digest", user), ("ip", "127.0.0.1"))


@pytest.mark.parametrize(
    ("scheme", "credential"), [("digest", None), ("none", b"x"), ("world", b"anyone"), ("sasl", b"x"), (None, b"")]
)
def test_auth__fails(either: Scene, scheme: str | None, credential: bytes | None) -> None:
    """After the refusal the connection is closed; the session continues over another."""
    visitor = either.visitor()
    answer = visitor.ask(Auth(scheme, credential))
    assert (answer.error, answer.zxid) == (AUTH_FAILED, 0)
    assert visitor.client.is_closed()
    assert either.resume(visitor).greeting.session == visitor.greeting.session
