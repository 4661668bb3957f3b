"""Rounds of deposits by a worker, into accounts of their own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from .models import Account, Execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Task

# Cents. The same for all deposits of a round, so that lost ones can be counted.
AMOUNT = 100
# Fewer accounts than the worker has processes: two of them are always at the same one.
OWNERS = ("Ada", "Barbara", "Grace")


class Round:
    """Deposits with one task, by turns into accounts that no other round uses.

    An owner named more than once has more turns. ``bank`` is how many seconds a deposit takes, if
    not as long as the task says.
    """

    def __init__(
        self, run: str, task: Task[..., None], *, owners: Sequence[str] = OWNERS, bank: float | None = None
    ) -> None:
        """Open the accounts."""
        self.run = run
        self.sent = 0
        self._failed = 0
        self._task = task
        self._options = {} if bank is None else {"bank": bank}
        accounts = {owner: Account.objects.create(name=f"{owner}, {run}") for owner in dict.fromkeys(owners)}
        self._turns = itertools.cycle([accounts[owner] for owner in owners])

    def send(self, count: int) -> None:
        """Hand so many deposits to the worker."""
        for account in itertools.islice(self._turns, count):
            self._task.delay(account.pk, AMOUNT, self.run, **self._options)
            self.sent += 1

    def done(self) -> int:
        """Count the deposits that have been worked on."""
        return Execution.objects.filter(run=self.run).count()

    def on_their_way(self) -> int:
        """Count the deposits that have been sent, are not done, and have not failed."""
        left = self.sent - self.done()
        # Some that were taken for failed may be done by now.
        self._failed = min(self._failed, left)
        return left - self._failed

    def give_up(self) -> None:
        """Take the deposits that are on their way for failed."""
        self._failed += self.on_their_way()
