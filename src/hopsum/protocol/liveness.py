"""Times after which agents and controller count each other as gone, in seconds.

They belong together. An agent that hears nothing pings, gives its connection up after PING_SECONDS
+ PING_TIMEOUT, and then tries again, for at most CONNECT_TIMEOUT a time. So it is back within
RECONNECT_SECONDS of the end of any outage, whether the controller was stopped or the management
network cut.
"""

from __future__ import annotations

HEARTBEAT_SECONDS = 1.0
"""Maximum interval between two messages of an agent."""
PING_SECONDS = 5.0
"""Silence after which a client pings."""
PING_TIMEOUT = 5.0
"""Wait for the answer to a ping, after which a client gives up its connection."""
CONNECT_TIMEOUT = 5.0
"""Limit of one attempt to connect: with gRPC's 20 s the next address would wait too long."""
RECONNECT_PAUSE = 0.2
"""Least pause between two attempts of an agent to connect."""
PAUSE_SHARE = 0.05
"""A pause as a fraction of the time for which there has been no controller."""
LAST_PAUSE = 5.0
"""Maximum pause; one after an attempt that took as long is RECONNECT_PAUSE."""
RETURN_SECONDS = 3.0
"""Time within which an agent must return after its stream has ended: it tries again at once, and
the first packets of its connections are at most 2 s apart."""
RECONNECT_SECONDS = CONNECT_TIMEOUT + RECONNECT_PAUSE + 0.8
"""The same after the controller itself was stopped, when the kernel has accepted connections that
are given up first."""
SILENCE_SECONDS = 30.0
"""Silence on an open stream after which an agent is lost; one that is stopped is only late."""
OUTAGE_SECONDS = 20.0
"""Duration of an outage of controller or management network that affects no job.

The kernel ends a connection of the controller whose data are not acknowledged for that long: gRPC's
servers set TCP_USER_TIMEOUT so. A controller that has sent nothing keeps its end for
SILENCE_SECONDS. Measured with veths cut for 15 and 40 s: agents gave their streams up after 9.5 s,
the controller's kernel after 21 s; new streams began 0.5 to 1.2 s after the end of the cut."""
