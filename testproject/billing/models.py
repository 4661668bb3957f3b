"""Accounts, what was paid into them, and when exactly a task worked on one."""

from __future__ import annotations

from django.db import models

from django_zklock import FencedModel


class Account(FencedModel):
    """An owner's money, in cents."""

    name = models.CharField(max_length=100, unique=True)
    balance = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        """Return the owner's name."""
        return self.name


class Deposit(models.Model):
    """A payment that the bank has confirmed; the account's balance ought to be the sum of them."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="deposits")
    amount = models.BigIntegerField()
    run = models.CharField(max_length=50, db_index=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        """Return the amount and the account."""
        return f"{self.amount / 100:.2f} to {self.account_id}"


class Execution(models.Model):
    """When a task was between reading and writing an account, and under which lock.

    ``started`` and ``ended`` are seconds since the epoch, ``waited`` is seconds. Without a lock, ``token``
    and ``waited`` are null.
    """

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="executions")
    run = models.CharField(max_length=50, db_index=True)
    task_id = models.CharField(max_length=50)
    started = models.FloatField()
    ended = models.FloatField()
    token = models.BigIntegerField(null=True)
    waited = models.FloatField(null=True)

    def __str__(self) -> str:
        """Return the task and the account."""
        return f"{self.task_id} on {self.account_id}"
