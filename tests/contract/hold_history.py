"""What has been held when, and whether any legal order explains it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from django_zklock.zk.held import Held
from django_zklock.zk.queue import Rule

# Of which kinds several may hold at once, by the words of the manual and not by the rules that are tested.
SHARED = {"read", "lease"}


@dataclass
class Hold:
    """One hold of a lock. The moments are numbers of one clock that ticks with every one that is asked for.

    ``invoked`` is before the acquisition was asked for, ``granted`` after it was there, ``released`` before the release
    was asked for. So it was really held at least from ``granted`` to ``released``.
    """

    rule: Rule
    tokens: dict[str, int]
    invoked: int
    granted: int
    released: int = -1

    def __str__(self) -> str:
        kind = self.rule.kind.value + (f" of {self.rule.limit}" if self.rule.limit else "")
        return f"{kind} {self.tokens} asked for at {self.invoked}, held from {self.granted} to {self.released}"


@dataclass
class History:
    """Every hold that there has been. Any thread may add to it."""

    holds: list[Hold] = field(default_factory=list)
    _clock: itertools.count[int] = field(default_factory=itertools.count)

    def now(self) -> int:
        return next(self._clock)

    def granted(self, held: Held, invoked: int) -> Hold:
        """Note that ``held`` was granted just now."""
        hold = Hold(held.lock.rule, held.tokens, invoked, self.now())
        self.holds.append(hold)
        return hold

    def released(self, hold: Hold) -> None:
        """Note that ``hold`` is about to be given back."""
        hold.released = self.now()

    def check(self) -> None:
        """Raise ``AssertionError`` unless the order of the tokens explains everything."""
        for key in sorted({key for hold in self.holds for key in hold.tokens}):
            _check_queue(key, [hold for hold in self.holds if key in hold.tokens])

    def most_at_once(self, key: str) -> int:
        """Return how many have held ``key`` at the same time."""
        holds = [hold for hold in self.holds if key in hold.tokens]
        return max(sum(each.granted <= hold.granted < each.released for each in holds) for hold in holds)


def _check_queue(key: str, holds: list[Hold]) -> None:
    ordered = sorted(holds, key=lambda hold: hold.tokens[key])
    tokens = [hold.tokens[key] for hold in ordered]
    assert len(set(tokens)) == len(tokens), f"two holds of {key} have one token: {tokens}"
    for place, later in enumerate(ordered):
        before = ordered[:place]
        for earlier in before:
            # The hold that was granted before the other was asked for has the lower token.
            assert earlier.invoked < later.granted, f"{key}: {later}, but {earlier}"
        # Whether they hold already or still wait: by its token it stands behind them.
        ahead = [earlier for earlier in before if later.granted < earlier.released]
        _check_turn(key, later, ahead)


def _check_turn(key: str, hold: Hold, ahead: Iterable[Hold]) -> None:
    for other in ahead:
        together = other.rule.kind is hold.rule.kind and hold.rule.kind.value in SHARED
        assert together, f"{key}: {hold}, although {other}"
    if hold.rule.limit is not None:
        leases = [other for other in ahead if other.rule.kind is hold.rule.kind]
        lowest = min(lease.rule.limit or 0 for lease in [*leases, hold])
        assert len(leases) < lowest, f"{key}: {hold}, although {', '.join(map(str, leases))}"
