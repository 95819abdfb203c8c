"""Values and errors of BMv2's run-time interface, the same over Thrift and over gRPC.

Names and numbers are those of behavioral-model's standard.thrift, simple_pre.thrift and
simple_switch.thrift.
"""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from p4switch.targets.v1model.engine import ControlError


class Record(SimpleNamespace):
    """A struct: `kind` is its name in the interface, the other attributes are its fields."""

    def __init__(self, kind: str, **fields: Any) -> None:
        super().__init__(kind=kind, **fields)


class Fault(Exception):
    """An exception of the interface: its name, and the code in it."""

    def __init__(self, kind: str, code: IntEnum, message: str = "") -> None:
        self.kind = kind
        self.code = code
        super().__init__(message or code.name)


class MatchParamType(IntEnum):
    """BmMatchParamType."""

    EXACT = 0
    LPM = 1
    TERNARY = 2
    VALID = 3
    RANGE = 4


class ActionEntryType(IntEnum):
    """BmActionEntryType."""

    NONE = 0
    ACTION_DATA = 1
    MBR_HANDLE = 2
    GRP_HANDLE = 3


class TableCode(IntEnum):
    """TableOperationErrorCode."""

    TABLE_FULL = 1
    INVALID_HANDLE = 2
    EXPIRED_HANDLE = 3
    COUNTERS_DISABLED = 4
    METERS_DISABLED = 5
    AGEING_DISABLED = 6
    INVALID_TABLE_NAME = 7
    INVALID_ACTION_NAME = 8
    WRONG_TABLE_TYPE = 9
    INVALID_MBR_HANDLE = 10
    MBR_STILL_USED = 11
    MBR_ALREADY_IN_GRP = 12
    MBR_NOT_IN_GRP = 13
    INVALID_GRP_HANDLE = 14
    GRP_STILL_USED = 15
    EMPTY_GRP = 16
    DUPLICATE_ENTRY = 17
    BAD_MATCH_KEY = 18
    INVALID_METER_OPERATION = 19
    DEFAULT_ACTION_IS_CONST = 20
    INVALID_ACTION_PROFILE_NAME = 23
    NO_ACTION_PROFILE_SELECTION = 24
    IMMUTABLE_TABLE_ENTRIES = 25
    BAD_ACTION_DATA = 26
    ERROR = 100


class ArrayCode(IntEnum):
    """CounterOperationErrorCode and RegisterOperationErrorCode."""

    INVALID_NAME = 1
    INVALID_INDEX = 2
    ERROR = 3


class MeterCode(IntEnum):
    """MeterOperationErrorCode."""

    INVALID_METER_NAME = 1
    INVALID_INDEX = 2
    BAD_RATES_LIST = 3
    ERROR = 6


class MulticastCode(IntEnum):
    """McOperationErrorCode."""

    TABLE_FULL = 1
    INVALID_MGID = 2
    INVALID_MGRP_HANDLE = 3
    INVALID_L1_HANDLE = 4
    ERROR = 5


class MirroringCode(IntEnum):
    """MirroringOperationErrorCode."""

    SESSION_NOT_FOUND = 1


class ValueSetCode(IntEnum):
    """ParseVSetOperationErrorCode."""

    INVALID_PARSE_VSET_NAME = 1
    ERROR = 2


class CrcCode(IntEnum):
    """CrcErrorCode."""

    INVALID_CALCULATION_NAME = 1
    WRONG_TYPE_CALCULATION = 2
    INVALID_CONFIG = 3


class OtherCode(IntEnum):
    """Codes of the device manager, of swaps and of look-ups of ids that p4switch can give."""

    INVALID_RESOURCE_TYPE = 0
    ERROR = 1


TABLE, COUNTER, METER = "InvalidTableOperation", "InvalidCounterOperation", "InvalidMeterOperation"
REGISTER, MULTICAST = "InvalidRegisterOperation", "InvalidMcOperation"
MIRRORING, VALUE_SET = "InvalidMirroringOperation", "InvalidParseVSetOperation"
CRC, SWAP, DEVICE = "InvalidCrcOperation", "InvalidSwapOperation", "InvalidDevMgrOperation"

CODES: dict[str, type[IntEnum]] = {
    TABLE: TableCode,
    COUNTER: ArrayCode,
    METER: MeterCode,
    REGISTER: ArrayCode,
    MULTICAST: MulticastCode,
    MIRRORING: MirroringCode,
    VALUE_SET: ValueSetCode,
    CRC: CrcCode,
    SWAP: OtherCode,
    DEVICE: OtherCode,
}
"""The codes of each exception."""

_TABLE_CODES = {
    "ALREADY_EXISTS": TableCode.DUPLICATE_ENTRY,
    "NOT_FOUND": TableCode.INVALID_HANDLE,
    "RESOURCE_EXHAUSTED": TableCode.TABLE_FULL,
    "PERMISSION_DENIED": TableCode.IMMUTABLE_TABLE_ENTRIES,
}


def table_fault(error: ControlError) -> Fault:
    """Return a refused request on a table or action profile as BMv2's exception."""
    return Fault(TABLE, _TABLE_CODES.get(error.code, TableCode.ERROR), str(error))


def array_code(error: ControlError) -> ArrayCode:
    """Return the code of a refused request on an array."""
    codes = {"NOT_FOUND": ArrayCode.INVALID_NAME, "OUT_OF_RANGE": ArrayCode.INVALID_INDEX}
    return codes.get(error.code, ArrayCode.ERROR)
