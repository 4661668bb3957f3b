"""What a worker imports to tell the program that started it that it takes tasks.

The program passes the write end of a pipe, and its number in :data:`VARIABLE`; see
:class:`tests.toolbox.celery.worker.Worker`.
"""

from __future__ import annotations

import os

from celery.signals import worker_ready

VARIABLE = "WORKER_READY_DESCRIPTOR"


@worker_ready.connect
def tell_ready(**_: object) -> None:
    """Write one byte to the pipe; a worker that was started by hand has none."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is not None:
        os.write(int(descriptor), b"\n")
        os.close(int(descriptor))
