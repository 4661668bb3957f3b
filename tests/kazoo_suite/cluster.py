"""What kazoo's tests ask of the servers that they run on, whichever these are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol


class Node(Protocol):
    """One server, under the names that kazoo's harness uses; some tests stop it and start it again."""

    @property
    def address(self) -> str: ...

    @property
    def secure_address(self) -> str: ...

    @property
    def running(self) -> bool: ...

    def run(self) -> None:
        """Start the server and do not wait for it."""

    def stop(self) -> None:
        """Stop the server and keep its data."""

    def get_logs(self, num_lines: int = 100) -> list[str]: ...


class Cluster:
    """Stands in for the cluster of kazoo's harness, which would build its own certificates and start Java itself.

    The harness ends its cluster after each class of tests. This one stays until the next is made or ``close`` is
    called: every test has a part of the tree of its own, and starting Java some forty times would take longer than
    the tests.
    """

    current: ClassVar[Cluster | None] = None

    def __init__(self, nodes: Sequence[Node], *, papers: Mapping[str, bytes] | None, end: Callable[[], None]) -> None:
        """Replace the cluster that was made before; nothing runs yet.

        ``papers`` are a TLS client's key and certificate and the authority's, as PEM, None without TLS;
        ``end`` ends the servers.
        """
        self._nodes = nodes
        self._papers = papers
        self._end = end
        Cluster.current = self

    @classmethod
    def close(cls) -> None:
        """End the servers of the cluster that was made last."""
        current, Cluster.current = Cluster.current, None
        if current is not None:
            current._end()

    def __getitem__(self, index: int) -> Node:
        return self._nodes[index]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def start(self) -> None:
        """Start what does not run; the harness connects and tries again until it is served."""
        for node in self:
            if not node.running:
                node.run()

    def terminate(self) -> None:
        """Leave the servers to the next class of tests."""

    def get_logs(self) -> list[str]:
        """Return what the servers have logged last."""
        return [line for node in self for line in node.get_logs()]

    def get_ssl_client_configuration(self) -> Mapping[str, bytes]:
        """Return what a client needs for TLS; raise NotImplementedError if the servers know none."""
        if self._papers is None:
            msg = "the test server knows no TLS"
            raise NotImplementedError(msg)
        return self._papers
