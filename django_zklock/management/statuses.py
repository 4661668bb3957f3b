"""The exit statuses of ``manage.py zklock``."""

from __future__ import annotations

import os

# Of every action.
FINE = 0
FINDING = 1
COULD_NOT_RUN = 2
# As a shell has it for SIGINT.
INTERRUPTED = 130

# Of `run`, beside the command's own: the codes of sysexits.h, and the shell's for what cannot be started.
UNAVAILABLE = os.EX_UNAVAILABLE
CONFLICT = os.EX_TEMPFAIL
LOST = os.EX_PROTOCOL
NOT_EXECUTABLE = 126
NOT_FOUND = 127
