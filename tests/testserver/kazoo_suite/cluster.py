"""The interface that kazoo's tests use for their servers, real or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol


class Node(Protocol):
    """One server, with the attributes that kazoo's harness uses; some tests stop it and start it again."""

    @property
    def address(self) -> str: ...

    @property
    def secure_address(self) -> str: ...

    @property
    def running(self) -> bool: ...

    def run(self) -> None:
        """Start the server without waiting for it."""

    def stop(self) -> None:
        """Stop the server and keep its data."""

    def get_logs(self, num_lines: int = 100) -> list[str]: ...


class Cluster:
    """Replaces the cluster of kazoo's harness, which would create its own certificates and start Java itself.

    The harness stops its cluster after each class of tests. This one runs until the next one is created or ``close``
    is called: every test has its own part of the tree, and about forty starts of Java would take longer than the
    tests.
    """

    current: ClassVar[Cluster | None] = None

    def __init__(self, nodes: Sequence[Node], *, papers: Mapping[str, bytes] | None, end: Callable[[], None]) -> None:
        """Replace the previous cluster; nothing runs yet.

        ``papers`` are a TLS client's key and certificate and the authority's certificate, as PEM; None without TLS.
        ``end`` stops the servers.
        """
        self._nodes = nodes
        self._papers = papers
        self._end = end
        Cluster.current = self

    @classmethod
    def close(cls) -> None:
        """Stop the servers of the last cluster."""
        current, Cluster.current = Cluster.current, None
        if current is not None:
            current._end()

    def __getitem__(self, index: int) -> Node:
        return self._nodes[index]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def start(self) -> None:
        """Start the servers that do not run; the harness connects and retries until it is served."""
        for node in self:
            if not node.running:
                node.run()

    def terminate(self) -> None:
        """Keep the servers for the next class of tests."""

    def get_logs(self) -> list[str]:
        """Return the last log lines of the servers."""
        return [line for node in self for line in node.get_logs()]

    def get_ssl_client_configuration(self) -> Mapping[str, bytes]:
        """Return the files of a client for TLS; raise NotImplementedError if the servers do not support it."""
        if self._papers is None:
            msg = "the test server knows no TLS"
            raise NotImplementedError(msg)
        return self._papers
