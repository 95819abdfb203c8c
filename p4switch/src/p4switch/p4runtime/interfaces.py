"""Read-only state of the ports over gNMI, on the P4Runtime server: openconfig-interfaces.

P4Runtime does not report that a port goes down; controllers use gNMI (specification 0.8), as with
Stratum. Every port has `/interfaces/interface[name=*]/state/` with the leaves `name`, `ifindex` and
`id`, both of which are the port number, and `oper-status`, UP or DOWN.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import grpc

from p4switch.p4runtime.status import fail
from p4switch.proto import gnmi, gnmi_grpc
from p4switch.targets.v1model.engine import ControlError

GNMI_VERSION = "0.8.0"
MODEL = gnmi.ModelData(name="openconfig-interfaces", organization="OpenConfig working group")
ENCODINGS = (gnmi.Encoding.PROTO, gnmi.Encoding.JSON)
"""JSON is the default, but finsy's subscriptions then expect typed values, as Stratum sends them:
so all get those."""
MAX_SUBSCRIPTIONS = 16
"""Maximum subscriptions; each holds a thread of the server."""
STATUS = "oper-status"
LEAVES = ("name", "ifindex", "id", STATUS)


class Subscription:
    """Subscriptions of one client; `wake` is called from any thread when there are events.

    A port that changes often while the client is slow is reported once, in its last state.
    """

    def __init__(
        self,
        first: list[gnmi.SubscribeResponse],
        on_change: frozenset[tuple[int, str]],
        wake: Callable[[], None],
    ) -> None:
        self.first = first
        """The initial state, followed by a sync response."""
        self.on_change = on_change
        self.wake = wake
        self.changed: dict[int, None] = {}


class InterfaceService(gnmi_grpc.gNMIServicer):
    """gNMI for ports `names`, by number; `date_ns`: nanoseconds since 1970.

    Callers that serve subscriptions without a thread each, unlike `Subscribe`, call `join`, `news`
    after each `wake`, and `leave`.
    """

    def __init__(self, names: Mapping[int, str], date_ns: Callable[[], int] = time.time_ns) -> None:
        self._names = dict(names)
        self._up = dict.fromkeys(self._names, True)
        self._date_ns = date_ns
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []

    def port_changed(self, port: int, up: bool) -> None:
        """Record whether a port has a link."""
        with self._lock:
            if self._up[port] == up:
                return
            self._up[port] = up
            concerned = [each for each in self._subscriptions if (port, STATUS) in each.on_change]
            for subscription in concerned:
                subscription.changed[port] = None
        for subscription in concerned:
            subscription.wake()

    # -- calls

    def Capabilities(
        self, request: gnmi.CapabilityRequest, context: grpc.ServicerContext
    ) -> gnmi.CapabilityResponse:
        """Return the capabilities."""
        return gnmi.CapabilityResponse(
            supported_models=[MODEL], supported_encodings=ENCODINGS[:1], gNMI_version=GNMI_VERSION
        )

    def Get(self, request: gnmi.GetRequest, context: grpc.ServicerContext) -> gnmi.GetResponse:
        """Read leaves; NOT_FOUND for a path without any."""
        try:
            _check_encoding(request.encoding)
            answer = gnmi.GetResponse()
            for path in request.path or [gnmi.Path()]:
                found = list(self._below(request.prefix, path))
                if (
                    not (found or self._of_any(request.prefix, path))
                    or request.type == gnmi.GetRequest.CONFIG
                ):
                    where = _words(request.prefix, path)
                    raise ControlError("NOT_FOUND", f"{where}: there is no such state")
                with self._lock:
                    answer.notification.append(self._notification(found))
        except ControlError as error:
            fail(context, error)
        return answer

    def Set(self, request: gnmi.SetRequest, context: grpc.ServicerContext) -> gnmi.SetResponse:
        """Refuse: the operating system configures interfaces."""
        fail(context, ControlError("UNIMPLEMENTED", "the state of interfaces is read-only"))

    def Subscribe(
        self, request_iterator: Iterator[gnmi.SubscribeRequest], context: grpc.ServicerContext
    ) -> Iterator[gnmi.SubscribeResponse]:
        """Send the state once, or on each change as well."""
        news = threading.Event()
        request = next(request_iterator, gnmi.SubscribeRequest())
        try:
            subscription = self.join(request, news.set)
        except ControlError as error:
            fail(context, error)
        context.add_callback(news.set)
        try:
            yield from subscription.first
            while subscription.on_change and context.is_active():
                news.wait()
                news.clear()
                yield from self.news(subscription)
        finally:
            self.leave(subscription)

    # -- subscriptions

    def join(self, request: gnmi.SubscribeRequest, wake: Callable[[], None]) -> Subscription:
        """Begin a subscription; ControlError for an unsupported one."""
        if request.WhichOneof("request") != "subscribe":
            raise ControlError(
                "INVALID_ARGUMENT", "expected subscribe as the first message of a client"
            )
        requested = request.subscribe
        _check_encoding(requested.encoding)
        if requested.mode == gnmi.SubscriptionList.POLL:
            raise ControlError("UNIMPLEMENTED", "mode POLL: expected ONCE or STREAM")
        stream = requested.mode == gnmi.SubscriptionList.STREAM
        found: dict[tuple[int, str], None] = {}
        for each in requested.subscription:
            if stream and each.mode == gnmi.SubscriptionMode.SAMPLE:
                raise ControlError("UNIMPLEMENTED", "SAMPLE: expected ON_CHANGE or TARGET_DEFINED")
            found |= dict.fromkeys(self._below(requested.prefix, each.path))
        with self._lock:
            if stream and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
                raise ControlError(
                    "RESOURCE_EXHAUSTED", f"there are {MAX_SUBSCRIPTIONS} subscriptions already"
                )
            first = [gnmi.SubscribeResponse(sync_response=True)]
            if found and not requested.updates_only:
                update = self._notification(found)
                first.insert(0, gnmi.SubscribeResponse(update=update))
            on_change = frozenset(found if stream else ())
            subscription = Subscription(first, on_change, wake)
            if stream:
                self._subscriptions.append(subscription)
        return subscription

    def news(self, subscription: Subscription) -> list[gnmi.SubscribeResponse]:
        """Return the changes since the last call."""
        with self._lock:
            changed, subscription.changed = subscription.changed, {}
            return [
                gnmi.SubscribeResponse(update=self._notification([(port, STATUS)]))
                for port in changed
            ]

    def leave(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    # -- state

    def _below(self, prefix: gnmi.Path, path: gnmi.Path) -> Iterator[tuple[int, str]]:
        """Return the leaves, by port and name, at a path or below it."""
        for port, name in self._names.items():
            for leaf in LEAVES:
                if _leads_to(prefix, path, _path(name, leaf)):
                    yield port, leaf

    def _of_any(self, prefix: gnmi.Path, path: gnmi.Path) -> bool:
        """Return whether a path matches leaves of any ports, even if there are none."""
        return any(_leads_to(prefix, path, _path("*", leaf)) for leaf in LEAVES)

    def _notification(self, leaves: Iterable[tuple[int, str]]) -> gnmi.Notification:
        return gnmi.Notification(
            timestamp=self._date_ns(),
            update=[
                gnmi.Update(path=_path(self._names[port], leaf), val=self._value(port, leaf))
                for port, leaf in leaves
            ],
        )

    def _value(self, port: int, leaf: str) -> gnmi.TypedValue:
        match leaf:
            case "name":
                return gnmi.TypedValue(string_val=self._names[port])
            case "oper-status":
                return gnmi.TypedValue(string_val="UP" if self._up[port] else "DOWN")
        return gnmi.TypedValue(uint_val=port)


def _path(name: str, leaf: str) -> gnmi.Path:
    return gnmi.Path(
        elem=[
            gnmi.PathElem(name="interfaces"),
            gnmi.PathElem(name="interface", key={"name": name}),
            gnmi.PathElem(name="state"),
            gnmi.PathElem(name=leaf),
        ]
    )


def _leads_to(prefix: gnmi.Path, path: gnmi.Path, leaf: gnmi.Path) -> bool:
    requested = [*prefix.elem, *path.elem]
    return len(requested) <= len(leaf.elem) and all(map(_matches, requested, leaf.elem))


def _matches(requested: gnmi.PathElem, full: gnmi.PathElem) -> bool:
    """Return whether an element of a path, with `*` as a wildcard, matches."""
    return requested.name in ("*", full.name) and all(
        value in ("*", full.key.get(key)) for key, value in requested.key.items()
    )


def _check_encoding(encoding: int) -> None:
    if encoding not in ENCODINGS:
        raise ControlError("UNIMPLEMENTED", f"encoding {encoding}: expected PROTO")


def _words(prefix: gnmi.Path, path: gnmi.Path) -> str:
    elements = [*prefix.elem, *path.elem]
    return "".join(
        f"/{each.name}" + "".join(f"[{key}={value}]" for key, value in each.key.items())
        for each in elements
    )[:200]
