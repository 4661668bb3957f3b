"""The exit codes of ``manage.py zklock``."""

from __future__ import annotations

import os

# Of every subcommand.
OK = 0
FOUND_PROBLEM = 1
COULD_NOT_RUN = 2
# What a shell returns for SIGINT.
INTERRUPTED = 130

# Of `run`, if it is not the command's own: those of sysexits.h, and a shell's for a command that cannot be started.
UNAVAILABLE = os.EX_UNAVAILABLE
CONFLICT = os.EX_TEMPFAIL
LOST = os.EX_PROTOCOL
NOT_EXECUTABLE = 126
NOT_FOUND = 127
