"""BMv2's Python modules for its Thrift clients (p4-utils), without generated code.

`p4switch shims` writes modules `bm_runtime`, `sswitch_runtime` and `bmpy_utils`, which come with
BMv2 and which PyPI lacks; these functions fill them.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from functools import partial
from typing import Any

from p4switch.bmv2_runtime.records import CODES, ActionEntryType, MatchParamType
from p4switch.bmv2_runtime.thrift import SERVICES, ThriftError, connect, definitions


def fill(module: dict[str, Any], service: str | None = None) -> None:
    """Give a module the structs, exceptions and enums, and the client of a service.

    Raises ThriftError.
    """
    found = definitions()
    kinds = vars(found)["__thrift_meta__"]
    module.update({each.__name__: each for each in (*kinds["structs"], *kinds["exceptions"])})
    module["BmMatchParamType"] = _enum(MatchParamType)
    module["BmActionEntryType"] = _enum(ActionEntryType)
    for exception, codes in CODES.items():
        subject = exception.removeprefix("Invalid").removesuffix("Operation")
        for name in (f"{subject}OperationErrorCode", f"{subject}ErrorCode"):
            module[name] = _enum(codes)
    if service is not None:
        from thriftpy2.thrift import TClient

        module["Client"] = partial(TClient, getattr(found, SERVICES[service]))


def _enum(values: type[IntEnum]) -> type:
    """Return an enum as Thrift generates it: a class of integers, and maps from and to names."""
    numbers = {name: int(each) for name, each in values.__members__.items()}
    names = {number: name for name, number in numbers.items()}
    return type(
        values.__name__, (), {**numbers, "_NAMES_TO_VALUES": numbers, "_VALUES_TO_NAMES": names}
    )


def thrift_connect(thrift_ip: str, thrift_port: int, services: list[tuple[str, Any]]) -> list[Any]:
    """Return clients of services, given as names and `Client`s; a name None gives None.

    Ends the process, as bmpy_utils does, if no server answers.
    """
    from thriftpy2.protocol import TBinaryProtocolFactory, TMultiplexedProtocolFactory

    try:
        transport = connect(int(thrift_port), thrift_ip)
    except ThriftError as error:
        sys.exit(str(error))
    return [
        None
        if name is None
        else client(
            TMultiplexedProtocolFactory(TBinaryProtocolFactory(), name).get_protocol(transport)
        )
        for name, client in services
    ]
