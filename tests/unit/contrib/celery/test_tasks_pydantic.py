"""Tasks whose arguments Celery converts with pydantic, from Celery 5.5 on."""

# Early versions of Celery do not resolve annotations that are strings.

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.app.base import Celery

from django_zklock import current_lock, zk_locked
from django_zklock.contrib.celery.tasks import outermost_lock
from tests.toolbox.django.layer import Ensemble

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]
pydantic = pytest.importorskip("pydantic")
pytestmark = [
    pytest.mark.celery,
    pytest.mark.skipif(
        "pydantic" not in inspect.signature(Celery._task_from_fun).parameters,
        reason="Celery 5.4 does not know pydantic",
    ),
]


class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    number: int
    shop: str = "main"


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("converting", broker="memory://", set_as_current=False) as app:
        yield app


def run(order: Order, *, force: bool = False) -> Any:
    held = current_lock()
    assert held is not None
    return type(order).__name__, held.key


def bound(self: Any, order: Order, *, force: bool = False) -> Any:
    return run(order, force=force)


def key_at_the_gate(task: Any, *args: Any, **kwargs: Any) -> str:
    """Return the key that the main process of a worker makes of a task's arguments."""
    call, own = outermost_lock(task)
    assert call is not None
    return call.lock(call.key((*own, *args), kwargs), "default", lambda: None).key


@pytest.mark.parametrize("function", [run, bound])
@pytest.mark.parametrize("options", [{}, {"autoretry_for": (Exception,)}], ids=["plain", "autoretry"])
@pytest.mark.parametrize(
    "key",
    ["{order.number}:{order.shop}", lambda order: f"{order.number}:{order.shop}"],
    ids=["template", "callable"],
)
def test_key__of_converted_arguments(
    app: Celery, ensemble: Ensemble, function: Callable[..., Any], options: dict[str, Any], key: Any
) -> None:
    """The main process makes the key of the converted arguments, as the task does, and neither runs nor locks it."""
    task = app.task(name="t", shared=False, bind=function is bound, pydantic=True, **options)(zk_locked(key)(function))
    for args, kwargs in [(({"number": "7"},), {}), ((), {"order": {"number": 7}, "force": True})]:
        assert key_at_the_gate(task, *args, **kwargs) == "7:main"
        assert current_lock() is None
        assert tuple(task(*args, **kwargs)) == ("Order", "7:main")


def test_key__strict(app: Celery) -> None:
    """Arguments that the task does not accept have no key: the task fails with the same error where it runs."""
    task = app.task(name="t", shared=False, pydantic=True, pydantic_strict=True)(zk_locked("{order.number}")(run))
    assert key_at_the_gate(task, {"number": 7}) == "7"
    for call in (key_at_the_gate, lambda task, *args: task(*args)):
        with pytest.raises(pydantic.ValidationError, match="valid integer"):
            call(task, {"number": "7"})


def test_key__validator_with_a_lock(app: Celery, ensemble: Ensemble) -> None:
    """A validator may call a function with a lock of its own."""

    class Strange(Order):
        @pydantic.field_validator("number")  # type: ignore[untyped-decorator]
        @staticmethod
        def look_up(number: int) -> int:
            return zk_locked("other")(lambda: number + 1)()

    def strange(order: Strange) -> None: ...

    task = app.task(name="t", shared=False, pydantic=True)(zk_locked("{order.number}")(strange))
    assert key_at_the_gate(task, {"number": 7}) == "8"


def test_other_decorator__stays_in_its_slot(app: Celery) -> None:
    """A decorator that is not Celery's may change the arguments, so the key is made in the task."""

    def double(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def doubled(order: Order, **options: Any) -> Any:
            return function(Order(number=2 * order.number), **options)

        return doubled

    for name, is_converted in {"plain": False, "converted": True}.items():
        task = app.task(name=name, shared=False, pydantic=is_converted)(double(zk_locked("{order.number}")(run)))
        assert outermost_lock(task) == (None, ())
