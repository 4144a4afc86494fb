"""``/metrics``: the numbers of all processes of one host, merged, in Prometheus' text format.

Apart from ``telemetry.py`` so that a process that only counts need not load Prometheus' library.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from seckill.runtime.telemetry import Kind, Layout, Merge, Metric, read_slots

__all__ = ["CONTENT_TYPE", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render(folder: Path, layout: Layout) -> bytes:
    """All numbers of this host in Prometheus' text format, the slots merged.

    Complexity: one read of a few kilobytes for each slot that there ever was.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(folder, layout))
    return generate_latest(registry)


class _Collector:
    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        slots = list(read_slots(self._folder, self._layout))
        for metric in self._layout.metrics.values():
            first = self._layout.cell(metric.name, metric.children[0])
            last = first + metric.cells_each * len(metric.children)
            merge = max if metric.kind is Kind.GAUGE and metric.merge is Merge.MAX else sum
            merged = [merge(cell) for cell in zip(*(s[first:last] for s in slots), strict=True)]
            yield _family(metric, merged or [0.0] * (last - first))


def _family(metric: Metric, cells: list[float]) -> Family:
    """One metric as Prometheus' library wants it; ``cells`` are those of all its combinations."""
    names = metric.label_names
    match metric.kind:
        case Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.meaning, labels=names)
            for values, cell in zip(metric.children, cells, strict=True):
                counter.add_metric(values, cell)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.meaning, labels=names)
            for values, cell in zip(metric.children, cells, strict=True):
                gauge.add_metric(values, cell)
            return gauge
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=names)
            each = metric.cells_each
            for number, values in enumerate(metric.children):
                own = cells[number * each : (number + 1) * each]
                reached = 0.0
                buckets = []
                for bound, count in zip(
                    [*(repr(bound) for bound in metric.bounds), "+Inf"], own, strict=False
                ):
                    reached += count
                    buckets.append((bound, reached))
                histogram.add_metric(values, buckets, own[-1])
            return histogram
