"""The same work twice: without a lock, and with one line more."""

from __future__ import annotations

import time

from celery import current_task, shared_task

from django_zklock import current_lock, fenced_update, zk_locked

from .models import Account, Deposit, Execution

# How long the bank takes to answer, in seconds.
BANK = 0.02


@shared_task
def deposit_naive(account_id: int, amount: int, run: str, bank: float = BANK) -> None:
    """Pay into an account with nothing to keep others out."""
    pay_in(account_id, amount, run, bank)


@shared_task
@zk_locked("account:{account_id}")
def deposit(account_id: int, amount: int, run: str, bank: float = BANK) -> None:
    """Pay into an account that no other task changes meanwhile."""
    pay_in(account_id, amount, run, bank)


def pay_in(account_id: int, amount: int, run: str, bank: float) -> None:
    """Read the balance, ask the bank, write the balance: wrong, if another task does so at the same time.

    A real project would write ``F("balance") + amount``. It could not, if the new balance depended on the
    old one by way of a call to another system, which is when one needs a lock.
    """
    started = time.time()
    balance = Account.objects.get(pk=account_id).balance
    time.sleep(bank)
    held = current_lock()
    if held is None:
        Account.objects.filter(pk=account_id).update(balance=balance + amount)
    else:
        # Refused if this process was paused for so long that another one has the lock, and has written.
        fenced_update(Account.objects.filter(pk=account_id), held, balance=balance + amount)
    Deposit.objects.create(account_id=account_id, amount=amount, run=run)
    ended = time.time()
    Execution.objects.create(
        account_id=account_id,
        run=run,
        task_id=current_task.request.id or "",
        started=started,
        ended=ended,
        token=held.token if held is not None else None,
        waited=held.waited if held is not None else None,
    )
