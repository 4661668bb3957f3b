"""What the contenders of one round do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

# What a contender asks for: see `cycles_of` in clients/crew.py.
KINDS = ("exclusive", "try", "mixed", "semaphore", "several")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Contenders that acquire and release in a loop.

    ``contenders`` are threads of one process with one session, or with ``processes`` processes with a session each.
    Every contender uses all ``keys``, one after the other; with the kind ``several`` all of them in one lock.
    """

    host: str
    port: int
    key: str
    kind: str = "exclusive"
    contenders: int = 1
    processes: bool = False
    keys: int = 1
    limit: int = 4

    def words(self) -> str:
        """Return the fields as ``name=value``, which a program in any language can read."""
        return " ".join(f"{name}={int(value) if isinstance(value, bool) else value}"
                        for name, value in asdict(self).items())  # fmt: skip

    @classmethod
    def parse(cls, words: Mapping[str, str]) -> Self:
        """Return the load that ``words`` describe."""
        return cls(
            host=words["host"],
            port=int(words["port"]),
            key=words["key"],
            kind=words["kind"],
            contenders=int(words["contenders"]),
            processes=words["processes"] == "1",
            keys=int(words["keys"]),
            limit=int(words["limit"]),
        )

    @property
    def hosts(self) -> str:
        """The address as clients of ZooKeeper write it."""
        return f"{self.host}:{self.port}"

    @property
    def names(self) -> list[str]:
        """The keys."""
        return [f"{self.key}-{number}" for number in range(self.keys)]
