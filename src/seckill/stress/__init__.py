"""The load generator: many buyers at once, one fate for each, and a verdict.

``run_stress(plan, target)`` sends what the plan fixed beforehand, whatever the server does, and
returns a report that ends in named checks. It loads this machine only, unless told otherwise.
"""

from seckill.stress.errors import StressError, TargetUnreachable
from seckill.stress.fates import BuyerFate, Fate, Won
from seckill.stress.follow import Followed, OrderFate
from seckill.stress.latency import Percentiles
from seckill.stress.plan import Arrival, Connect, StressPlan, parse_quantity_weights
from seckill.stress.progress import ProgressListener, RichProgress, Snapshot, Stage
from seckill.stress.report import StressReport, render_text
from seckill.stress.run import Audit, run_stress, run_stress_in_new_loop
from seckill.stress.target import HeadersFor, Target, bearer_headers, dev_headers
from seckill.stress.verdict import Check

__all__ = [
    "Arrival",
    "Audit",
    "BuyerFate",
    "Check",
    "Connect",
    "Fate",
    "Followed",
    "HeadersFor",
    "OrderFate",
    "Percentiles",
    "ProgressListener",
    "RichProgress",
    "Snapshot",
    "Stage",
    "StressError",
    "StressPlan",
    "StressReport",
    "Target",
    "TargetUnreachable",
    "Won",
    "bearer_headers",
    "dev_headers",
    "parse_quantity_weights",
    "render_text",
    "run_stress",
    "run_stress_in_new_loop",
]
