"""The record of a request, and what ends it: its child is killed, Celery drops it, or its task ends."""

from __future__ import annotations

import json
import logging
import os
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from billiard.exceptions import WorkerLostError
from celery.app.task import Context
from celery.exceptions import TaskRevokedError

from django_zklock import signals
from django_zklock.contrib.celery.gate import request as gate_request
from django_zklock.contrib.celery.gate.child_note import DELAY
from django_zklock.contrib.celery.gate.run import MAX_READY
from django_zklock.contrib.celery.gate.states import STATES, STEPS, Event, Phase, Verdict
from django_zklock.contrib.celery.gate.ticket import HEADER
from django_zklock.exceptions import LockTimeout
from django_zklock.zk.waiting import monotonic
from tests.unit.contrib.celery.gate.workplace import Workplace, known_to_celery, put

pytestmark = pytest.mark.celery


@pytest.mark.parametrize("event", Event)
def test_steps__no_others(monkeypatch: pytest.MonkeyPatch, event: Event) -> None:
    """A step that is not in the table is an error in the log; it is made nevertheless, unless the request is over."""
    errors: list[str] = []
    monkeypatch.setattr(gate_request.logger, "error", lambda text, *_facts: errors.append(text))
    for pair in STATES:
        locked = Workplace().request()
        locked.phase, locked.verdict = pair
        effects = locked.happen(event)
        is_over = pair.phase is Phase.OVER
        is_known = pair in STEPS[event] or (is_over and event in {Event.ENDED, Event.GIVEN_BACK})
        assert [text.split()[0] for text in errors] == ([] if is_known else ["event=unexpected_step"])
        errors.clear()
        if is_over:
            assert (locked.pair, effects) == (pair, ())
        elif is_known:
            assert locked.pair == STEPS[event][pair]
        else:
            assert locked.phase in {after.phase for after in STEPS[event].values()}


def test_states__of_all_pairs() -> None:
    """Every pair that a step leads to or from has a word for operators, and no other pair."""
    met = {pair for steps in STEPS.values() for step in steps.items() for pair in step}
    assert met <= set(STATES)
    assert {pair for pair in STATES if pair.phase is not Phase.OVER} <= met


@pytest.mark.parametrize(("phase", "verdict"), sorted(STATES, key=str))
def test_over__from_everywhere(phase: Phase, verdict: Verdict) -> None:
    """Whatever ends a request, and however often: its lock is released once, and nothing of it is left at the gate."""
    workplace = Workplace()
    locked = workplace.request()
    put(locked, phase, verdict)
    for _ in range(2):
        locked.over()
    workplace.loop.turn()
    gate = workplace.gate
    assert (locked.phase, locked.attempts.ends) == (Phase.OVER, 0 if phase in {Phase.QUEUED, Phase.OVER} else 1)
    assert not any((gate.decided, gate.parked, gate.slots.in_hand))
    if phase is not Phase.OVER:
        assert gate.requests == {}
        assert not {"on_accepted", "on_success", "on_failure", "on_timeout"} & vars(locked.request).keys()


def test_window__those_that_wait() -> None:
    """A request counts in addition to Celery's window while it waits for another contender, or has waited for one."""
    workplace = Workplace()
    locked = workplace.request()
    found = []
    for contended in (False, True):
        locked.contended = contended
        for phase, verdict in [(Phase.WAITING, Verdict.NONE), (Phase.DECIDED, Verdict.GRANTED)]:
            put(locked, phase, verdict)
            found.append(len(workplace.gate.parked))
    put(locked, Phase.SUBMITTED, Verdict.GRANTED)
    assert [*found, len(workplace.gate.parked)] == [1, 0, 1, 1, 0]


def test_lost__kills_no_later_task() -> None:
    """A child is killed only while the run has not ended, even if its result comes at that moment."""
    workplace = Workplace()
    locked, in_child = workplace.running()
    assert in_child.claim(71)
    phases = []
    finishing = threading.Thread(target=locked.over)

    def on_kill() -> None:
        # The result comes now: Celery will give the child its next task when this run is over.
        finishing.start()
        finishing.join(0.2)
        phases.append(locked.phase)

    workplace.watcher.on_kill = on_kill
    locked._kill_child()
    assert (workplace.watcher.killed, phases) == ([71], [Phase.CLAIMED])
    finishing.join()
    locked._kill_child()
    assert len(workplace.watcher.killed) == 1


@pytest.mark.parametrize("how", ["killed", "faster", "before the session"])
def test_lost__the_loss_is_the_failure(how: str) -> None:
    """A task whose child was killed for its lost lock, or has found the loss first, fails with that.

    After a pause of the main process the child may have ended itself before the session's thread sees that the lease is
    over. What Celery finds out later changes nothing.
    """
    workplace = Workplace()
    locked, in_child = workplace.running(on_lost="terminate")
    on_failure = locked.request.on_failure
    assert in_child.claim(71)
    if how == "before the session":
        locked.attempts.lease_expired = True
    else:
        locked.attempts.contender.lost = "its node was deleted"
    if how == "killed":
        workplace.lose(locked)
    assert workplace.watcher.killed == ([71] if how == "killed" else [])
    on_timeout = locked.request.on_timeout
    workplace.end_child()
    on_failure(SimpleNamespace(exception=WorkerLostError("signal 9")))
    on_timeout(soft=False, timeout=60)
    (failure,) = workplace.failures
    assert (type(failure.exception.exc).__name__, locked.phase) == ("LockLost", Phase.OVER)


@pytest.mark.parametrize("by_time", [True, False])
def test_lost__the_pool_was_first(by_time: bool) -> None:
    """A task that has failed, by its time limit or with its child, does not fail once more for its lost lock."""
    workplace = Workplace()
    locked, in_child = workplace.running(on_lost="terminate")
    assert in_child.claim(71)
    if by_time:
        locked._callbacks["on_timeout"] = lambda _soft, _limit: None
        locked.request.on_timeout(soft=False, timeout=60)
    else:
        locked.request.on_failure(SimpleNamespace(exception=WorkerLostError("signal 9")))
    failures = len(workplace.failures)
    workplace.lose(locked)
    workplace.end_child()
    assert (workplace.watcher.killed, len(workplace.failures), locked.phase) == ([], failures, Phase.OVER)


@pytest.mark.shows("faults#the-lock-is-lost-when-the-body-has-ended-and-the-main-process-does-not-know-of-the-end")
@pytest.mark.parametrize("is_read", [True, False])
def test_lost__after_the_body(is_read: bool) -> None:
    """A child whose body has ended is not killed for a later loss, whatever the main process has read of it."""
    workplace = Workplace()
    locked, in_child = workplace.running(on_lost="terminate")
    assert in_child.claim(71)
    assert not is_read or locked._is_claimed()
    in_child.end()
    workplace.lose(locked)
    workplace.end_child()
    assert (workplace.watcher.killed, workplace.failures, locked.verdict) == ([], [], Verdict.GRANTED)


@pytest.mark.shows("faults#the-lock-is-lost-when-the-body-has-ended-and-the-main-process-does-not-know-of-the-end")
def test_lost__ends_once() -> None:
    """A task that has failed for its lost lock reports no success after that."""
    workplace = Workplace()
    locked, in_child = workplace.running(on_lost="terminate")
    successes: list[str] = []
    locked._callbacks["on_success"] = successes.append
    on_success = locked.request.on_success
    assert in_child.claim(71)
    locked._kill_child()
    on_success("result")
    assert (workplace.watcher.killed, successes) == ([71], [])
    workplace.end_child()
    assert (len(workplace.failures), locked.phase) == (1, Phase.OVER)


def test_lost__child_is_gone_when_its_claim_is_read() -> None:
    """A child that has ended itself for the loss, before Celery has reported that it has the task, fails it once."""
    workplace = Workplace()
    locked, in_child = workplace.running(pid=None, on_lost="terminate")
    on_failure = locked.request.on_failure
    assert in_child.claim(71)
    workplace.watcher.gone.add(71)
    workplace.lose(locked)
    on_failure(SimpleNamespace(exception=WorkerLostError("signal 9")))
    assert (len(workplace.failures), locked.phase, locked.verdict) == (1, Phase.OVER, Verdict.KILLED)


def test_lost__accepted_after_the_end() -> None:
    """A task whose child was killed before Celery reads that it has begun fails once.

    T1: the child claims the hold, and its word to Celery is in the pipe. T2: the lock is lost, and the child killed.
    T3: the end of the child is noticed, and the task fails. T4: Celery reads the word of a child that is gone.
    """
    workplace = Workplace()
    locked, in_child = workplace.running(pid=None, on_lost="terminate")
    on_accepted = locked.request.on_accepted
    assert in_child.claim(71)
    workplace.lose(locked)
    assert workplace.watcher.killed == [71]
    workplace.end_child()
    workplace.watcher.gone.add(71)
    on_accepted(71, monotonic())
    workplace.loop.turn()
    assert (len(workplace.failures), locked.phase, locked.verdict) == (1, Phase.OVER, Verdict.KILLED)


def test_lost__before_the_body() -> None:
    """A child that has not begun the body is not killed: it finds the loss, and acquires the lock itself."""
    workplace = Workplace()
    locked, in_child = workplace.running(on_lost="terminate")
    workplace.lose(locked)
    assert workplace.watcher.killed == []
    assert not in_child.claim(71)


@pytest.mark.parametrize("is_gone", [True, False])
def test_accepted__by_a_second_child(is_gone: bool) -> None:
    """When Celery gives a task to a second child, the lock stays with the first, which has claimed it, to its end."""
    workplace = Workplace()
    locked, in_child = workplace.running()
    assert in_child.claim(71)
    if is_gone:
        workplace.watcher.gone.add(71)
    accepted: list[int] = []
    locked._callbacks["on_accepted"] = lambda pid, _when: accepted.append(pid)
    locked.on_accepted(72, monotonic())
    assert (accepted, locked.pid, locked.attempts.ends) == ([72], 71, int(is_gone))
    if not is_gone:
        workplace.end_child()
    assert (locked.phase, locked.attempts.ends) == (Phase.OVER, 1)


def test_accepted__here() -> None:
    """A revoked task of a child that has died is acknowledged by the main process, which is no child to wait for."""
    workplace = Workplace()
    locked, _in_child = workplace.running()
    locked._callbacks["on_accepted"] = lambda _pid, _when: None
    workplace.watcher.watched.clear()
    locked.pid = None
    locked.on_accepted(os.getpid(), monotonic())
    assert (locked.pid, workplace.watcher.watched) == (None, set())


class Note:
    """What is written into the nodes of a run, instead of writing it."""

    written: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, _contender: Any, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.written.append(facts)


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_zklock.contrib.celery.gate.run.ChildNote", Note)


def noted(
    pid: int | None, *, ran: float, is_known: bool = True, forks: bool = True
) -> tuple[Any, list[dict[str, Any]]]:
    """Return a run whose lock was granted, and what is written about it ``ran`` seconds after its last step."""
    locked, _in_child = Workplace(forks=forks).running(pid)
    Note.written.clear()
    locked._granted_at, locked.moved = 1234.5, 0.0
    for _ in range(2):
        if is_known:
            with known_to_celery(locked):
                locked.note(ran)
        else:
            locked.note(ran)
    return locked, Note.written


@pytest.mark.parametrize(("pid", "child"), [(71, 71), (None, 0)])
def test_note__after_a_while(pid: int | None, child: int) -> None:
    """The nodes name the child of a task that has run for a while, and say so if it has waited for a slot as long."""
    assert noted(pid, ran=DELAY - 1)[1] == []
    assert noted(pid, ran=DELAY + 1)[1] == [{"child": child, "granted": 1234.5, "forgotten": False}]


def test_note__forgotten() -> None:
    """A task that Celery has forgotten is written at once, for its worker cannot end it any more."""
    _locked, written = noted(71, ran=0.1, is_known=False)
    assert written == [{"child": 71, "granted": 1234.5, "forgotten": True}]


@pytest.mark.parametrize("forks", [True, False])
def test_note__slot_after_a_wait(forks: bool) -> None:
    """When a task whose nodes say that it has no slot has got one, the nodes say so at once, without a child too."""
    locked, written = noted(None, ran=DELAY + 1, forks=forks)
    locked.pid, locked.moved = 71, DELAY + 1
    with known_to_celery(locked):
        locked.note(DELAY + 1.1)
    assert written[-1]["child"] == (71 if forks else None)


def test_note__threads() -> None:
    """Nothing is written about a task in a thread, which has no process of its own."""
    assert noted(71, ran=DELAY + 1, forks=False)[1] == []


def test_state() -> None:
    """A request is shown in the words of the command."""
    found = []
    for phase, verdict, pid in [
        (Phase.QUEUED, Verdict.NONE, None),
        (Phase.JOINING, Verdict.NONE, None),
        (Phase.WAITING, Verdict.NONE, None),
        (Phase.DECIDED, Verdict.GRANTED, None),
        (Phase.DECIDED, Verdict.IN_SLOT, None),
        (Phase.SUBMITTED, Verdict.GRANTED, None),
        (Phase.SUBMITTED, Verdict.GRANTED, 71),
        (Phase.CLAIMED, Verdict.GRANTED, 71),
        (Phase.SUBMITTED, Verdict.REFUSED, 71),
        (Phase.RELEASED, Verdict.GRANTED, 71),
        (Phase.SUBMITTED, Verdict.IN_SLOT, 71),
    ]:
        locked = Workplace().request()
        locked.pid = pid
        put(locked, phase, verdict)
        found.append(locked.state)
    assert found == [
        "queued", "queued", "waiting", "granted", "queued", "granted", "held", "held", "refused", "running", "running",
    ]  # fmt: skip


def test_state__lost() -> None:
    """The task whose lock is lost is not one that holds it."""
    locked, _in_child = Workplace().running()
    assert locked.state == "held"
    locked.attempts.contender.lost = "its node was deleted"
    assert locked.state == "lost"


def test_ticket__waited_for_the_lock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time from the grant to a slot is no wait for the lock."""
    locked = Workplace().request()
    locked.began = monotonic()
    put(locked, Phase.DECIDED, Verdict.GRANTED)
    monkeypatch.setattr(gate_request, "monotonic", lambda: monotonic() + 1000.0)
    assert locked._ticket(locked.attempts.contender).waited < 1000.0


def test_ticket__no_part_of_a_retry() -> None:
    """What Celery sends again, before the body has begun, has no ticket in its headers: no message can contain one."""
    workplace = Workplace()
    locked = workplace.request()
    put(locked, Phase.DECIDED, Verdict.GRANTED)
    locked.attempts.decided = True
    workplace.gate.slots.in_hand = 1
    workplace.gate.slots.settle()
    assert HEADER in locked.request.request_dict
    json.dumps(Context(locked.request.request_dict).headers)


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.JOINING, Phase.WAITING, Phase.DECIDED, Phase.SUBMITTED])
def test_revoked__before_the_hand_over(phase: Phase) -> None:
    """A task that is revoked before Celery's pool has it is never begun, and leaves its lock and its slot."""
    workplace = Workplace()
    locked = workplace.request()
    hand_over = locked.request.execute_using_pool

    def refuse_if_revoked(pool: object) -> None:
        # As Celery's own requests do.
        if locked.request.revoked():
            raise TaskRevokedError
        hand_over(pool)

    def revoke() -> None:
        locked.request.revoked = lambda: True

    locked.request.execute_using_pool = refuse_if_revoked
    if phase is Phase.QUEUED:
        workplace.gate.slots.queue(locked)
        revoke()
    else:
        put(locked, Phase.WAITING if phase is Phase.WAITING else Phase.JOINING)
        if phase in {Phase.JOINING, Phase.WAITING}:
            revoke()
        locked.attempts.decided = True
        if phase is Phase.SUBMITTED:
            # While the gate puts the ticket into the request.
            workplace.gate.send_event = lambda *_facts: revoke()
        locked.step()
        if phase is Phase.DECIDED:
            revoke()
    workplace.end_task()
    assert (locked.phase, workplace.submitted, workplace.gate.slots.in_hand) == (Phase.OVER, [], 0)
    assert workplace.semaphore.value == 1


@pytest.mark.parametrize("soft", [True, False])
def test_timeout__child_still_runs(soft: bool) -> None:
    """At a time limit the lock stays held until the child has ended: Celery kills it after this call."""
    workplace = Workplace()
    locked, _in_child = workplace.running()
    locked.request.on_timeout(soft, 1.0)
    phases = [locked.phase]
    assert workplace.watcher.watched == {71}
    workplace.end_child()
    assert [*phases, locked.phase] == [Phase.SUBMITTED, Phase.OVER]


@pytest.mark.parametrize("body_runs", [False, True])
def test_drop__is_reported_if_the_lock_is_released(caplog: pytest.LogCaptureFixture, body_runs: bool) -> None:
    """A task that Celery drops is reported when its lock is released, and not if its body runs under the lock."""
    dropped: list[Any] = []

    def note(**facts: Any) -> None:
        dropped.append(facts["id"])

    workplace = Workplace()
    locked, in_child = workplace.running(pid=None)
    # The pool was given the job, and has it no more.
    locked.request._apply_result = lambda: None
    signals.dropped.connect(note)
    try:
        with caplog.at_level(logging.WARNING, "django_zklock.celery"):
            if body_runs:
                assert in_child.claim(71)
            for _ in range(2):
                locked.reconcile()
    finally:
        signals.dropped.disconnect(note)
    reports = [record for record in caplog.messages if record.startswith("event=dropped")]
    assert (len(reports), workplace.gate.counts["reconciled"], len(dropped)) == ((0,) * 3 if body_runs else (1,) * 3)
    assert locked.phase is (Phase.CLAIMED if body_runs else Phase.OVER)
    if body_runs:
        # Its child is watched from now on, and its end releases the lock.
        assert workplace.watcher.watched == {71}
        workplace.end_child()
        assert locked.phase is Phase.OVER
    assert not in_child.claim(72)


def test_drop__body_has_ended() -> None:
    """A task that Celery has dropped is over when its body has released the lock."""
    locked, in_child = Workplace().running()
    locked.request._apply_result = lambda: None
    assert in_child.claim(71)
    locked.reconcile()
    locked.on_body_ended()
    assert (locked.phase, locked.attempts.ends) == (Phase.RELEASED, 1)
    locked.reconcile()
    assert locked.phase is Phase.OVER


def test_drop__not_handed_over() -> None:
    """A task whose hand-over to a pool that is full blocks is not dropped, although the pool has no job of it."""
    locked, _in_child = Workplace().running()
    locked.reconcile()
    assert locked.phase is Phase.SUBMITTED


@pytest.mark.parametrize("forks", [True, False])
def test_not_claimed__others_wait(forks: bool) -> None:
    """A hold that the body does not take is released if others wait for it, and the body can take it no more."""
    locked, in_child = Workplace(forks=forks).running()
    locked.release_if_followed()
    locked.gate.loop.turn()
    assert (locked.phase, locked.verdict, locked.attempts.ends) == (Phase.SUBMITTED, Verdict.IN_SLOT, 1)
    assert not in_child.claim(71)


@pytest.mark.parametrize(("has_ended", "phase"), [(False, Phase.CLAIMED), (True, Phase.RELEASED)])
def test_not_claimed__the_body_was_first(has_ended: bool, phase: Phase) -> None:
    """A hold that the body has taken stays with it, whatever waits, and one that it has given back was taken too."""
    locked, in_child = Workplace().running(pid=None)
    assert in_child.claim(71)
    if has_ended:
        in_child.end()
    locked._release_unclaimed()
    found = locked.phase, locked.verdict, locked.pid, locked.attempts.ends
    assert found == (phase, Verdict.GRANTED, 71, int(has_ended))


def test_not_claimed__child_has_yet_to_start() -> None:
    """A hold waits for a body in a child that has yet to start as long as it takes, whatever waits."""
    workplace = Workplace()
    locked, _in_child = workplace.running(pid=None)
    now = monotonic() + 2 * MAX_READY
    workplace.children._waiting_to_start = {71}
    locked.check(now)
    assert (locked.moved, locked.attempts.followers) == (now, [])
    # It has started, and has not taken the task.
    workplace.children._waiting_to_start.clear()
    locked.check(now + 2 * MAX_READY)
    assert len(locked.attempts.followers) == 1


def test_followed__beside_requests_without_a_node() -> None:
    """Requests whose session has just ended do not matter to what waits behind a request; nor do those for several."""
    workplace = Workplace()
    locked, _in_child = workplace.running()
    for nodes in [{}, {"/k": "/k/1"}, {"/k": "/k/2", "/l": "/l/1"}]:
        other = workplace.request()
        other.attempts.contender.node_paths = nodes
        put(other, Phase.WAITING)
    locked.release_if_followed()
    assert locked.attempts.followers == [{"/k/1"}]


@pytest.mark.parametrize(("phase", "leaves"), [(Phase.WAITING, True), (Phase.SUBMITTED, False)])
def test_leave__rest_of_the_timeout(phase: Phase, leaves: bool) -> None:
    """At a cut a waiting task keeps the rest of its timeout for its next delivery; one that runs keeps its lock."""
    workplace = Workplace()
    locked = workplace.request()
    put(locked, phase, Verdict.NONE if leaves else Verdict.GRANTED)
    locked.deadline = monotonic() + 100
    assert locked.leave()
    message: Any = SimpleNamespace(message=SimpleNamespace(headers={}))
    read = [workplace.gate.read_rest(message, locked.attempt_id) for _ in range(2)]
    assert locked.phase is (Phase.OVER if leaves else phase)
    assert [each is not None and 0 < each <= 100 for each in read] == [leaves, False]


def test_ticket() -> None:
    """The ticket says what the verdict is; a task without one acquires its lock as without the gate."""
    tickets = []
    for verdict in (Verdict.GRANTED, Verdict.REFUSED, Verdict.IN_SLOT):
        workplace = Workplace()
        locked = workplace.request()
        put(locked, Phase.DECIDED, verdict)
        locked.attempts.decided = True
        locked.refusal = LockTimeout("taken") if verdict is Verdict.REFUSED else None
        workplace.gate.slots.in_hand = 1
        workplace.gate.slots.settle()
        tickets.append(locked.request.request_dict.get(HEADER))
    granted, refused, none = tickets
    assert (granted.token, granted.nodes, granted.refusal) == (5, {"/k": "/k/1"}, None)
    assert isinstance(refused.refusal, LockTimeout)
    assert refused.nodes == {}
    assert none is None
