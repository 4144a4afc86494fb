"""What a Sentinel dashboard, and people with a shell, see of a service.

``SentinelTransport`` has all of it: the command port that the dashboard asks (``command_center``,
``http_server``), the heartbeat by which it knows where to ask (``heartbeat``), and the log of what
happened in each second (``metric_recorder``, ``metric_files``). Where the numbers come from and
where rules go is a seam (``sources``): one engine in this process (``EngineSource``), or several
that are shown as one machine (``SummedSource``). ``BlockLog`` stands beside it, one per engine.
"""

from seckill.sentinel.transport.access import Access
from seckill.sentinel.transport.block_log import BlockLog
from seckill.sentinel.transport.command_center import CommandCenter
from seckill.sentinel.transport.counts import Counts, MachineLoad, MetricRow, TreeRow
from seckill.sentinel.transport.engine_source import EngineSource
from seckill.sentinel.transport.errors import (
    CommandRefused,
    PortUnavailable,
    TransportError,
)
from seckill.sentinel.transport.heartbeat import Dashboard, HeartbeatSender
from seckill.sentinel.transport.http_server import HTTPServer
from seckill.sentinel.transport.metric_files import MetricFileReader, MetricFileWriter
from seckill.sentinel.transport.metric_recorder import MetricRecorder
from seckill.sentinel.transport.settings import TransportSettings
from seckill.sentinel.transport.sources import RuleTarget, StatisticsSource
from seckill.sentinel.transport.summed_source import SummedSource
from seckill.sentinel.transport.transport import SentinelTransport

__all__ = [
    "Access",
    "BlockLog",
    "CommandCenter",
    "CommandRefused",
    "Counts",
    "Dashboard",
    "EngineSource",
    "HTTPServer",
    "HeartbeatSender",
    "MachineLoad",
    "MetricFileReader",
    "MetricFileWriter",
    "MetricRecorder",
    "MetricRow",
    "PortUnavailable",
    "RuleTarget",
    "SentinelTransport",
    "StatisticsSource",
    "SummedSource",
    "TransportError",
    "TransportSettings",
    "TreeRow",
]
