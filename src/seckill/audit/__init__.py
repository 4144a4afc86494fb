"""The audit: proves the promises over Redis and the ledger while the sale runs, changing nothing.

`run_audit` is the way in; `AuditReport` is what comes out. How it proves what it says, and why a
running sale raises no false alarm, stands in `seckill.audit.audit`.
"""

from seckill.audit.audit import AuditOptions, run_audit
from seckill.audit.collect import BucketReader
from seckill.audit.report import AuditReport, Finding, Kind, Promise, Subject

__all__ = [
    "AuditOptions",
    "AuditReport",
    "BucketReader",
    "Finding",
    "Kind",
    "Promise",
    "Subject",
    "run_audit",
]
