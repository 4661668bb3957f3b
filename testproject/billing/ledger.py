"""What a run of deposits has left behind, and whether it adds up."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Sum

from .models import Account, Deposit, Execution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long the holders of a lock had waited for it, in seconds."""

    mean: float
    p95: float
    longest: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Waits:
        """Sum up the waits; all are 0 if there were none."""
        ordered = sorted(seconds)
        if not ordered:
            return cls(mean=0.0, p95=0.0, longest=0.0)
        # The nearest rank: a wait that really occurred.
        rank = math.ceil(0.95 * len(ordered))
        return cls(mean=sum(ordered) / len(ordered), p95=ordered[rank - 1], longest=ordered[-1])


@dataclass(frozen=True, kw_only=True)
class Books:
    """A run's account books; amounts are cents.

    ``overlaps`` counts the executions that began while another one was still at work on the same account,
    ``disorders`` the ones whose token is not above that of the execution before them.
    """

    run: str
    deposits: int
    paid_in: int
    balance: int
    executions: int
    overlaps: int
    held: int
    disorders: int
    waits: Waits

    @property
    def lost_updates(self) -> int:
        """How many deposits are not in the balance; those of a run are all of the same amount."""
        return 0 if not self.paid_in else round((self.paid_in - self.balance) * self.deposits / self.paid_in)

    @property
    def agree(self) -> bool:
        """Whether the balance is what was paid in, by as many executions as there are deposits."""
        return self.balance == self.paid_in and self.executions == self.deposits


def audit(run: str) -> Books:
    """Add up what the run did to its accounts, into which no other run may have paid."""
    deposits = Deposit.objects.filter(run=run)
    paid_in = deposits.aggregate(total=Sum("amount", default=0))["total"]
    accounts = Account.objects.filter(pk__in=deposits.values("account"))
    executions = list(Execution.objects.filter(run=run).order_by("started"))
    by_account: dict[int, list[Execution]] = defaultdict(list)
    for execution in executions:
        by_account[execution.account_id].append(execution)
    return Books(
        run=run,
        deposits=deposits.count(),
        paid_in=paid_in,
        balance=accounts.aggregate(total=Sum("balance", default=0))["total"],
        executions=len(executions),
        overlaps=sum(overlaps([(each.started, each.ended) for each in line]) for line in by_account.values()),
        held=sum(execution.token is not None for execution in executions),
        disorders=sum(
            disorders([each.token for each in line if each.token is not None]) for line in by_account.values()
        ),
        waits=Waits.of(execution.waited for execution in executions if execution.waited is not None),
    )


def overlaps(intervals: Sequence[tuple[float, float]]) -> int:
    """Count the intervals, given by their starts, that begin before all earlier ones have ended."""
    count = 0
    latest_end = -math.inf
    for start, end in intervals:
        count += start < latest_end
        latest_end = max(latest_end, end)
    return count


def disorders(tokens: Sequence[int]) -> int:
    """Count the tokens that are not above the one before."""
    return sum(after <= before for before, after in itertools.pairwise(tokens))
