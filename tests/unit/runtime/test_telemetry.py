"""Metrics in memory-mapped files: what is counted, kept, merged and shown."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, strategies as st
from prometheus_client.parser import text_string_to_metric_families

from seckill.domain.outcomes import Outcome
from seckill.runtime.exposition import render
from seckill.runtime.metric_table import LAYOUT, metrics_markdown
from seckill.runtime.telemetry import Kind, Layout, Merge, Metric, Metrics, reset_gauges

REPOSITORY = Path(__file__).parents[3]
TABLE = Layout(
    [
        Metric("t_sold_total", Kind.COUNTER, "Sold.", (("colour", ("red", "blue")),)),
        Metric("t_waiting_requests", Kind.GAUGE, "Waiting."),
        Metric("t_age_seconds", Kind.GAUGE, "Age.", merge=Merge.MAX),
        Metric("t_pause_seconds", Kind.HISTOGRAM, "Pause.", (("at", ("a", "b")),), (0.1, 1.0)),
    ]
)


def shown(folder: Path, table: Layout = TABLE) -> dict[str, float]:
    samples = {}
    for family in text_string_to_metric_families(render(folder, table).decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


def test_slots_are_added_up_or_the_largest_is_shown(tmp_path: Path) -> None:
    for slot, number in (("web-0", 1.0), ("web-1", 2.0)):
        metrics = Metrics(tmp_path, slot, TABLE)
        metrics.counter("t_sold_total", "red").inc(number)
        metrics.counter("t_sold_total", "blue").inc()
        metrics.gauge("t_waiting_requests").set(number * 10)
        metrics.gauge("t_age_seconds").set(number)
        pause = metrics.histogram("t_pause_seconds", "b")
        for value in (0.05, 0.1, 0.5, 7.0):
            pause.observe(value)
        assert pause.count == 4
        metrics.close()
    samples = shown(tmp_path)
    assert samples["t_sold_total{colour=red}"] == 3
    assert samples["t_sold_total{colour=blue}"] == 2
    assert samples["t_waiting_requests{}"] == 30
    assert samples["t_age_seconds{}"] == 2
    # A value on a bound belongs below it, as Prometheus has it: le means less or equal.
    assert samples["t_pause_seconds_bucket{at=b,le=0.1}"] == 4
    assert samples["t_pause_seconds_bucket{at=b,le=1.0}"] == 6
    assert samples["t_pause_seconds_bucket{at=b,le=+Inf}"] == 8
    assert samples["t_pause_seconds_count{at=b}"] == 8
    assert samples["t_pause_seconds_sum{at=b}"] == pytest.approx(15.3)
    assert samples["t_pause_seconds_count{at=a}"] == 0


@given(
    st.lists(st.sampled_from([0.0, 0.1, 1.0]) | st.floats(0, 3, allow_subnormal=False), max_size=60)
)
def test_values_that_are_counted_together_are_counted_as_one_by_one(values: list[float]) -> None:
    with TemporaryDirectory() as folder:
        metrics = Metrics(Path(folder), "web-0", TABLE)
        metrics.histogram("t_pause_seconds", "a").observe_all(values)
        for value in values:
            metrics.histogram("t_pause_seconds", "b").observe(value)
        metrics.close()
        samples = shown(Path(folder))
    together = {name: value for name, value in samples.items() if "at=a" in name}
    assert together
    for name, value in together.items():
        assert value == pytest.approx(samples[name.replace("at=a", "at=b")])


def test_a_slot_that_is_started_again_goes_on_counting_and_forgets_its_gauges(
    tmp_path: Path,
) -> None:
    # The first one is not closed: it was killed.
    killed = Metrics(tmp_path, "web-0", TABLE)
    killed.counter("t_sold_total", "red").inc(5)
    killed.gauge("t_waiting_requests").set(7)
    again = Metrics(tmp_path, "web-0", TABLE)
    again.counter("t_sold_total", "red").inc()
    assert shown(tmp_path)["t_sold_total{colour=red}"] == 6
    assert shown(tmp_path)["t_waiting_requests{}"] == 0


def test_the_gauges_of_a_dead_slot_can_be_reset_by_another_process(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, "web-0", TABLE)
    metrics.counter("t_sold_total", "red").inc(5)
    metrics.gauge("t_waiting_requests").set(7)
    reset_gauges(tmp_path, "web-0", TABLE)
    assert metrics.gauge("t_waiting_requests").value == 0
    assert metrics.counter("t_sold_total", "red").value == 5
    reset_gauges(tmp_path, "web-9", TABLE)
    assert not (tmp_path / "web-9").exists()


def test_a_file_of_another_table_is_set_aside_and_not_misread(tmp_path: Path) -> None:
    other = Layout([Metric("t_other_total", Kind.COUNTER, "Other.")])
    old = Metrics(tmp_path, "web-0", other)
    old.counter("t_other_total").inc(99)
    old.close()
    new = Metrics(tmp_path, "web-0", TABLE)
    new.counter("t_sold_total", "red").inc()
    assert shown(tmp_path)["t_sold_total{colour=red}"] == 1
    assert shown(tmp_path)["t_waiting_requests{}"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["web-0", "web-0.other-layout"]
    assert shown(tmp_path, other)["t_other_total{}"] == 99


def test_torn_and_foreign_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"hello")
    (tmp_path / "short").write_bytes(TABLE.header)
    (tmp_path / "folder").mkdir()
    assert shown(tmp_path)["t_sold_total{colour=red}"] == 0
    assert shown(tmp_path / "missing")["t_sold_total{colour=red}"] == 0


def test_an_unknown_name_value_or_kind_is_an_error_of_the_program(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, "web-0", TABLE)
    with pytest.raises(KeyError):
        metrics.counter("t_nothing_total")
    with pytest.raises(KeyError):
        metrics.counter("t_sold_total", "green")
    with pytest.raises(KeyError):
        metrics.counter("t_waiting_requests")


def test_the_table_of_the_service_knows_every_outcome_and_shows_every_metric(
    tmp_path: Path,
) -> None:
    metrics = Metrics(tmp_path, "web-0", LAYOUT)
    for outcome in Outcome:
        metrics.counter("seckill_answers_total", outcome.name.lower()).inc()
    text = render(tmp_path, LAYOUT).decode()
    for name in LAYOUT.metrics:
        assert name.startswith("seckill_")
        assert (
            f"\n# TYPE {name} " in "\n" + text
            or f"# TYPE {name.removesuffix('_total')}_total" in text
        )


def test_the_reference_lists_every_metric() -> None:
    page = REPOSITORY / "docs" / "reference" / "metrics.md"
    assert page.read_text() == metrics_markdown(), (
        "write it anew: python -c 'from seckill.runtime.metric_table import metrics_markdown; "
        'print(metrics_markdown(), end="")\' > docs/reference/metrics.md'
    )
