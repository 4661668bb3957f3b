"""Which servers and processes can reach each other. What is under way between two that cannot comes later, or never."""

from __future__ import annotations


class Network:
    """The pairs that are cut off from each other, by name."""

    def __init__(self) -> None:
        self._cut: set[frozenset[str]] = set()

    def connects(self, one: str, other: str) -> bool:
        """Whether messages between the two arrive."""
        return not self._cut or frozenset((one, other)) not in self._cut

    def cut(self, one: str, other: str) -> None:
        """Hold back all messages between the two."""
        self._cut.add(frozenset((one, other)))

    def heal(self, one: str) -> None:
        """Let this one reach all others again."""
        self._cut = {pair for pair in self._cut if one not in pair}

    def heal_all(self) -> None:
        """Let everyone reach everyone."""
        self._cut.clear()

    def heal_servers(self, servers: list[str]) -> None:
        """Let these reach each other again."""
        self._cut = {pair for pair in self._cut if not pair <= set(servers)}

    @property
    def is_any_cut(self) -> bool:
        """Whether any two are cut off from each other."""
        return bool(self._cut)

    def is_cut(self, one: str) -> bool:
        """Whether this one is cut off from any other."""
        return any(one in pair for pair in self._cut)
