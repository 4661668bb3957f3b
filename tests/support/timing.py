"""What a test adds to a bound in seconds.

A bound shows that something ends by its own limit and not by another one, so the other one must be larger than the
bound and this: a connect timeout of a minute, a session of forty seconds.
"""

from __future__ import annotations

# For a machine that is busy with other things.
GRACE = 15.0
# A sixth of this session, a heartbeat, and the grace are over before it can end.
LONG_SESSION = 30.0
