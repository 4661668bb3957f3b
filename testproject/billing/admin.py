"""The accounts and what happened to them, to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models import Sum

from .models import Account, Deposit, Execution

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    # Django's own classes take no parameters when the program runs.
    AccountBase = admin.ModelAdmin[Account]
    DepositBase = admin.ModelAdmin[Deposit]
    ExecutionBase = admin.ModelAdmin[Execution]
else:
    AccountBase = DepositBase = ExecutionBase = admin.ModelAdmin


@admin.register(Account)
class AccountAdmin(AccountBase):
    """Accounts next to what they ought to hold."""

    list_display = ("name", "balance", "paid_in", "books_agree")
    search_fields = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Account]:
        """Add what was paid into each account."""
        return super().get_queryset(request).annotate(paid=Sum("deposits__amount", default=0))

    @admin.display(description="paid in", ordering="paid")
    def paid_in(self, account: Account) -> int:
        """Return the sum of the deposits, in cents."""
        return int(account.paid)  # type: ignore[attr-defined]

    @admin.display(description="books agree", boolean=True)
    def books_agree(self, account: Account) -> bool:
        """Tell whether the balance is the sum of the deposits."""
        return account.balance == self.paid_in(account)


@admin.register(Deposit)
class DepositAdmin(DepositBase):
    """The deposits, by run."""

    list_display = ("account", "amount", "run", "created")
    list_filter = ("run", "account")
    list_select_related = ("account",)


@admin.register(Execution)
class ExecutionAdmin(ExecutionBase):
    """When tasks worked on accounts, by run."""

    list_display = ("account", "run", "task_id", "started", "ended", "token", "waited")
    list_filter = ("run", "account")
    list_select_related = ("account",)
