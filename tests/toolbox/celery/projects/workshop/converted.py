"""Tasks whose arguments Celery converts with pydantic, which takes long to import: an option of the worker asks."""

# Early versions of Celery do not resolve annotations that are strings.

from typing import Any

from celery import shared_task
from pydantic import BaseModel

from django_zklock import zk_locked
from tests.toolbox.celery.projects.workshop.changed import ChangingAtStart, bill
from tests.toolbox.celery.projects.workshop.tasks import stay


class Order(BaseModel):
    key: str


@shared_task(pydantic=True)
@zk_locked("{order.key}")
def convert(order: Order, gate: str) -> dict[str, Any]:
    return stay(gate) | {"type": type(order).__name__}


@shared_task(pydantic=True, base=ChangingAtStart)
@zk_locked("{order.key}")
def convert_changed(order: Order, gate: str) -> dict[str, Any]:
    return bill(gate)
