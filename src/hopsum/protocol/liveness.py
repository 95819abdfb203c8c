"""Times after which agents and controller count each other as gone, in seconds.

They belong together. An agent that hears nothing pings, gives its connection up after PING_SECONDS
+ PING_TIMEOUT, and then tries again every CONNECT_TIMEOUT. So it is back within RECONNECT_SECONDS
of the end of any outage, whether the controller was stopped or the management network cut.
"""

from __future__ import annotations

HEARTBEAT_SECONDS = 1.0
"""Between two messages of an agent, at most."""
PING_SECONDS = 5.0
"""Without a message, until a client pings."""
PING_TIMEOUT = 5.0
"""Without an answer to a ping, until a client gives up its connection."""
CONNECT_TIMEOUT = 5.0
"""For one attempt to connect: gRPC's 20 s would let the next address wait."""
RECONNECT_PAUSE = 0.2
"""Between two attempts of an agent to connect."""
RETURN_SECONDS = 3.0
"""In which an agent must return whose stream has ended: a living one tries again at once, and the
first packets of its connections are at most 2 s apart."""
RECONNECT_SECONDS = CONNECT_TIMEOUT + RECONNECT_PAUSE + 0.8
"""The same after the controller itself was stopped, when the kernel has accepted connections that
are given up first."""
SILENCE_SECONDS = 30.0
"""Without a message on an open stream, until an agent is lost; one that is stopped is only late."""
OUTAGE_SECONDS = 20.0
"""An outage of controller or management network that costs no job anything.

The kernel ends a connection of the controller whose data are not acknowledged for that long: gRPC's
servers set TCP_USER_TIMEOUT so. A controller that has sent nothing keeps its end for
SILENCE_SECONDS. Measured with veths cut for 15 and 40 s: agents gave their streams up after 9.5 s,
the controller's kernel after 21 s; new streams began 0.5 to 1.2 s after the end of the cut."""
