"""An acquisition of the gate: its hold is for a child, or for a thread that runs the task."""

from __future__ import annotations

import math

from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import Contender, State


class GateAcquisition(Acquisition):
    """An acquisition whose hold is for another thread or process; ``timeout`` ends it, and no outage of ZooKeeper."""

    __slots__ = ()

    @property
    def granted(self) -> bool:
        return self.contender.state is State.HELD and not self.expired

    def poll(self) -> bool:
        """Poll like every acquisition, but leave a grant with the contender."""
        # Under the monitor: a grant between the two looks would be one to the thread that polls.
        with self.contender.session.monitor:
            return self.granted or super().poll()

    def _new_contender(self) -> Contender:
        contender = super()._new_contender()
        # The request decides how long a slot waits for ZooKeeper's first answer.
        self._response_deadline = self._deadline if self.timeout else math.inf
        # The gate, and not an outage, decides how long a message waits.
        contender.has_deadline = True
        return contender
