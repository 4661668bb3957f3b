"""The strategies of hypothesis for operations: few names and many wrong values, so that operations interact."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

from tests.testserver.comparison import Call, Close, Resume, Settle, Step
from tests.toolbox.protocol.operations import (
    ANN,
    CONTAINER,
    CREATE,
    CREATE2,
    CREATE_CONTAINER,
    CREATE_TTL,
    EPHEMERAL,
    MULTI_READ,
    OPEN,
    SEQUENCE,
    AddWatch,
    Auth,
    Check,
    CheckWatches,
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
    RemoveWatches,
    SetAcl,
    SetData,
    SetWatches,
    Sync,
    WhoAmI,
)

if TYPE_CHECKING:
    from tests.toolbox.protocol.jute import Acl, AclEntry, Path


T = TypeVar("T")


def weighted(*choices: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """Choose by weight; ``one_of`` would flatten nested choices and weigh them equally."""
    table = [choice for weight, choice in choices for _ in range(weight)]
    # By number: hypothesis prints what it samples from, and these are nested.
    return st.sampled_from(range(len(table))).flatmap(lambda number: table[number])


# Paths.

# Names at the second level include those of sequences.
OFTEN = ["/a", "/b", "/c", "/a/a", "/a/b"]
SELDOM = [
    "/mine",
    "/hers",
    "/brief",
    "/mine/a",
    "/hers/a",
    "/brief/a",
    "/a/a/a",
    "/a0000000006",
    "/a/a0000000001",
    "/ä",
]
GOOD: list[Path] = ["~" + name for name in (*OFTEN, *OFTEN, *OFTEN, *SELDOM)]
WRONG: list[Path] = [
    None,
    "",
    "a",
    "//",
    "~/",
    "~/a/",
    "~//a",
    "~/.",
    "~/..",
    "~/a/../b",
    "~/./a",
    "~/a\0",
    "~/a\0/b",
    "~/\x01",
    "~/\x1f",
    "~/\x7f",
    "~/\x9f",
    "~/\xa0",
    "~/...",
    "~/\ud7ff",
    "~/\ue000",
    "~/\uf8ff",
    "~/\uf900",
    "~/\ufeff",
    "~/\uffef",
    "~/\ufff0",
    "~/\U0001f600",
    b"/\xff\xfe",
    b"/\xed\xa0\x80",
]
FIXED: list[Path] = ["/zookeeper", "/zookeeper/config", "/zookeeper/quota", "/zookeeper/none"]
good_paths = st.sampled_from(GOOD)
wrong_paths = st.sampled_from(WRONG)
fixed_paths = st.sampled_from(FIXED)
home = st.just("~")
# The nodes that an example may change without effects outside its folder.
own_paths = weighted((12, good_paths), (2, home), (1, wrong_paths.filter(lambda path: path != "")))
# Watches and changes must meet.
busy_paths = weighted((3, st.sampled_from(["~/a", "~/b"])), (2, good_paths))
paths = weighted((15, good_paths), (2, home), (2, wrong_paths), (1, fixed_paths))
readable_paths = weighted((30, paths), (1, st.just("/")))

# Parts.

data = st.sampled_from([b"", b"x", b"longer", None])
versions = st.sampled_from([-1, -1, -1, -1, -1, -1, -1, 0, 0, 1, 2, 3, -2])
perms = weighted((2, st.just(31)), (4, st.integers(0, 31)), (1, st.sampled_from([-1, 32])))
IDENTITIES = [
    ("world", "anyone"),
    ("world", "someone"),
    ("auth", ""),
    ("auth", "x"),
    ("digest", ANN),
    ("digest", "ann:x"),
    ("digest", "ann"),
    ("digest", "a:b:c"),
    ("digest", ":"),
    ("digest", "a:"),
    ("ip", "127.0.0.1"),
    ("ip", "127.0.0.0/8"),
    ("ip", "127.0.0.9"),
    ("ip", "10.0.0.0/8"),
    ("ip", "127.0.0.1/33"),
    ("ip", "127.0.0.1/0"),
    ("ip", "127.0.0"),
    ("ip", "::1"),
    ("sasl", "ann"),
    ("x509", "CN=ann"),
    ("super", "ann"),
    ("", ""),
]
# The real server compares the entries of a list and fails on a missing field in some orders.
LACKING = [("auth", None), ("none", None), (None, "anyone"), (None, None)]
entries = st.builds(lambda perms, identity: (perms, *identity), perms, st.sampled_from(IDENTITIES))
usual_entries: st.SearchStrategy[AclEntry] = st.builds(
    lambda perms, identity: (perms, *identity),
    st.sampled_from([31, 31, 1, 3, 7, 15, 16, 30]),
    st.sampled_from([("world", "anyone"), ("auth", ""), ("digest", ANN), ("ip", "127.0.0.1")]),
)
usual_acls: st.SearchStrategy[Acl] = st.lists(usual_entries, min_size=1, max_size=2).map(tuple)
odd_acls: st.SearchStrategy[Acl] = weighted(
    (5, st.lists(entries, max_size=3).map(tuple)),
    (1, st.builds(lambda identity: ((31, *identity),), st.sampled_from(LACKING))),
    (1, st.none()),
)
acls: st.SearchStrategy[Acl] = weighted((3, st.just(OPEN)), (3, usual_acls), (1, odd_acls))
mostly_open: st.SearchStrategy[Acl] = weighted((8, st.just(OPEN)), (2, usual_acls), (1, odd_acls))


# Operations.


def _not_in_root(create: Create) -> bool:
    """Leave out sequences in the root: they depend on other examples."""
    return create.path != "~" or not create.flags & SEQUENCE


def _harmless(create: Create) -> bool:
    """Leave out the request that crashes the real server: a negative time to live for a node without one."""
    return create.opcode != CREATE_TTL or create.flags in {5, 6} or create.ttl >= 0


def _is_echoed(path: Path) -> bool:
    """Leave out requests that the real server encodes differently than it has decoded them."""
    return path is None or (isinstance(path, str) and all(character <= "\uffff" for character in path))


usual_creates = st.builds(
    Create,
    good_paths,
    st.sampled_from([0, 0, EPHEMERAL, SEQUENCE, EPHEMERAL | SEQUENCE]),
    data,
    mostly_open,
    st.sampled_from([CREATE, CREATE2]),
)
containers = st.builds(Create, good_paths, st.just(CONTAINER), data, mostly_open, st.just(CREATE_CONTAINER))
ttls = st.builds(Create, good_paths, st.sampled_from([5, 6]), data, mostly_open, st.just(CREATE_TTL))
odd_creates = st.builds(
    Create,
    own_paths,
    st.integers(-1, 8),
    data,
    acls,
    st.sampled_from([CREATE, CREATE2, CREATE_CONTAINER, CREATE_TTL]),
    st.sampled_from([60_000, 1, 0, -1, 2**40 - 1, 2**40]),
)
creates = weighted((8, usual_creates), (2, containers), (1, ttls), (2, odd_creates.filter(_harmless))).filter(
    _not_in_root
)
deletes = st.builds(Delete, weighted((12, good_paths), (2, own_paths), (1, fixed_paths)), versions)
checks = st.builds(Check, readable_paths, versions)
changes = st.builds(SetData, weighted((1, own_paths), (1, busy_paths)), data, versions)
accesses = st.builds(SetAcl, own_paths, acls, versions)
watches = st.booleans()
exists = st.builds(Exists, readable_paths, watches)
get_data = st.builds(GetData, readable_paths, watches)
get_children = st.builds(GetChildren, readable_paths, watches)
reads: st.SearchStrategy[Operation] = st.one_of(
    exists, get_data, get_children, st.builds(GetChildren2, readable_paths, watches)
)
queries: st.SearchStrategy[Operation] = weighted(
    (4, st.builds(GetAcl, readable_paths)),
    (1, st.builds(Sync, readable_paths.filter(_is_echoed))),
    (2, st.builds(CountDescendants, paths.filter(lambda path: path != ""))),
    (2, st.builds(GetEphemerals, weighted((3, own_paths), (2, st.sampled_from(["/", "", "~/a", " "]))))),
    (1, st.just(WhoAmI())),
    (1, st.just(Ping())),
)
watching: st.SearchStrategy[Operation] = st.one_of(
    st.builds(GetData, busy_paths, st.just(True)),
    st.builds(Exists, busy_paths, st.just(True)),
    st.builds(GetChildren, busy_paths, st.just(True)),
    st.builds(AddWatch, weighted((3, busy_paths), (1, home)), st.integers(0, 1)),
)
kinds = weighted((1, st.integers(0, 4)), (3, st.integers(1, 3)))
watch_orders: st.SearchStrategy[Operation] = st.one_of(
    # The real server would also watch a missing path.
    st.builds(AddWatch, own_paths.filter(lambda path: path is not None), st.integers(-1, 2)),
    st.builds(RemoveWatches, weighted((1, own_paths), (2, busy_paths)), kinds),
    st.builds(CheckWatches, weighted((1, own_paths), (2, busy_paths)), kinds),
)
watched = st.lists(weighted((8, good_paths), (1, st.sampled_from(["~", "", "a", "~/a/"]))), max_size=3).map(tuple)
set_watches = st.builds(
    SetWatches,
    weighted((5, st.integers(0, 12)), (1, st.just(10**6))),
    watched,
    watched,
    watched,
    st.one_of(st.none(), watched),
    watched,
)
multis = st.builds(
    Multi,
    weighted(
        (2, st.lists(st.one_of(creates, deletes, changes, checks), max_size=4).map(tuple)),
        (2, st.lists(st.one_of(usual_creates, containers, st.builds(Delete, good_paths)), max_size=4).map(tuple)),
        (1, st.lists(st.one_of(creates, deletes, changes, checks, accesses, reads, queries), max_size=3).map(tuple)),
    ),
)
# Without a path the real server takes a zxid that it does not show.
multis = multis.filter(lambda multi: all(getattr(part, "path", "") is not None for part in multi.operations))
read_multis = st.builds(
    Multi,
    weighted(
        (3, st.lists(st.one_of(get_data, get_children), max_size=4).map(tuple)),
        (1, st.lists(st.one_of(reads, usual_creates, checks), max_size=3).map(tuple)),
    ),
    st.just(MULTI_READ),
)
# In one packet after a change of an ACL, the real server checks the old or the new ACL, by chance.
together: st.SearchStrategy[Operation] = weighted(
    (9, creates),
    (7, deletes),
    (3, changes),
    (6, watching),
    (4, reads),
    (2, watch_orders),
    (3, queries),
    (1, set_watches),
    (3, multis),
    (1, read_multis),
)
plain = weighted((20, together), (1, accesses))
# WhoAmI has no body that could be cut, and the real server answers it in the order of a hash, which `Cut` compares.
cuttable = plain.filter(lambda operation: not isinstance(operation, WhoAmI))
requests: st.SearchStrategy[Operation] = weighted((40, plain), (1, st.builds(Cut, cuttable, st.integers(1, 80))))

# After these the connection is another one: they do not share a packet.
auths: st.SearchStrategy[Operation] = weighted(
    (3, st.sampled_from([Auth(), Auth(credential=b"bob:b")])),
    (
        2,
        st.builds(
            Auth,
            st.sampled_from(["digest", "ip", "world", "auth", "super", "x509", "none", "", None]),
            st.sampled_from([b"", b":", b"ann", b"ann:", b"ann:a:a", b"127.0.0.1", None]),
        ),
    ),
    (1, st.builds(Cut, st.just(Auth()), st.integers(1, 30))),
)
unknown = st.builds(Raw, st.sampled_from([0, -1, 10, 23, 99, 1000]), st.sampled_from([b"", b"xxxx"]))

# Steps.

sessions = st.integers(0, 2)
steps: st.SearchStrategy[Step] = weighted(
    (24, st.builds(lambda session, request: Call(session, (request,)), sessions, requests)),
    (6, st.builds(Call, sessions, st.lists(together, min_size=2, max_size=5).map(tuple))),
    (3, st.builds(lambda session, request: Call(session, (request,)), sessions, weighted((6, auths), (1, unknown)))),
    (1, st.builds(Close, sessions)),
    (1, st.builds(Resume, sessions, st.booleans(), st.booleans())),
    (1, st.just(Settle())),
)
# A list strategy alone would generate short lists.
plays = st.integers(1, 40).flatmap(lambda length: st.lists(steps, min_size=length, max_size=length).map(tuple))
