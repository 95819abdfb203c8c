"""Jobs and hosts of a controller as plain data."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hopsum.controller.jobs.job_state import JobError

if TYPE_CHECKING:
    from hopsum.protocol import hopsum_pb2 as pb


def job_dict(info: pb.JobInfo) -> dict[str, Any]:
    """Return a job for programs; `checked` and `wrong` once its workers have reported."""
    shown: dict[str, Any] = {
        "job": info.job,
        "name": info.name,
        "owner": info.owner,
        "state": info.state,
        "outcome": info.outcome,
        "reason": info.reason,
        "epoch": info.epoch,
        "workers": list(info.workers),
        "servers": list(info.servers),
        "bypasses": list(info.bypassed),
        "round": info.round,
        "submitted": _clock(info.submitted),
        "started": _clock(info.started),
        "ended": _clock(info.ended),
        "seconds": seconds_of(info),
    }
    if info.reports:
        shown |= verdict_of(info)
    return shown


def verdict_of(info: pb.JobInfo) -> dict[str, Any]:
    """Return the combined verdict of the workers on their sums. JobError if a report has none.

    `level_wise`: how that algorithm exchanged the tensors, if it was the job's.
    """
    for host, report in info.reports.items():
        if not report.HasField("verdict"):
            raise JobError(f"job {info.job}: the report of {host} has no verdict")
    reports = info.reports.values()
    forms = dict.fromkeys(form for report in reports for form in report.forms)
    return {
        "checked": sum(report.verdict.checked for report in reports),
        "wrong": sum(report.verdict.wrong for report in reports),
        "retransmissions": sum(report.retransmissions for report in reports),
    } | ({"level_wise": list(forms)} if forms else {})


def _clock(seconds: float) -> str | None:
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def seconds_of(info: pb.JobInfo) -> float | None:
    """Return how long it has run, or ran."""
    if not info.started:
        return None
    return round((info.ended or time.time()) - info.started, 3)


def node_dict(info: pb.NodeInfo) -> dict[str, Any]:
    """Return a host for programs; rates in bit/s, None where the link is unlimited."""
    return {
        "host": info.host,
        "attached": info.attached,
        "seconds": info.seconds,
        "jobs": list(info.jobs),
        "report_age": info.report_age if info.report.interfaces else None,
        "links": [
            {
                "peer": interface.peer,
                "sent": interface.sent,
                "received": interface.received,
                "free_sent": interface.free_sent if interface.HasField("free_sent") else None,
                "free_received": (
                    interface.free_received if interface.HasField("free_received") else None
                ),
            }
            for interface in info.report.interfaces
        ],
    }
