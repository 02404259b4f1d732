"""Hand all series to `prometheus_client`, which is imported at the first scrape and writes what was asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from informers import metrics
from informers.logs import fields

if TYPE_CHECKING:
    from prometheus_client import Metric

_log = logging.getLogger(__name__)


class Exposition(NamedTuple):
    """All series in some text format."""

    content_type: str
    body: bytes


def expose(accept: str) -> Exposition:
    """Return all series of the process in the best format that `accept` names, that of Prometheus if it names none."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)  # the library's global one is not ours to fill
    registry.register(_Collector())
    encode, content_type = choose_encoder(accept)
    return Exposition(content_type, encode(registry))


class _Collector:
    """What the library asks for the present numbers."""

    def collect(self) -> Iterator[Metric]:
        """Yield each series as the library's own type."""
        for series in metrics.all_series():
            try:
                yield _converted(series)
            except Exception:  # noqa: BLE001 - a number that cannot be computed must not hide the others
                _log.exception("series left out", extra=fields(series=series.name))


def _converted(series: metrics.AnySeries) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    match series:
        case metrics.Counter():
            counter = CounterMetricFamily(series.name, series.help, labels=series.labels)
            for key, value in series.samples():
                counter.add_metric(key, value)
            return counter
        case metrics.Gauge():
            gauge = GaugeMetricFamily(series.name, series.help, labels=series.labels)
            for key, value in series.samples():
                gauge.add_metric(key, value)
            return gauge
        case metrics.Histogram():
            histogram = HistogramMetricFamily(series.name, series.help, labels=series.labels)
            for key, found in series.samples():
                histogram.add_metric(key, buckets=_borders(found.buckets, found.count), sum_value=found.sum)
            return histogram


def _borders(buckets: Mapping[float, int], count: int) -> Sequence[tuple[str, int]]:
    from prometheus_client.utils import floatToGoString

    shown = [floatToGoString(border) for border in buckets]  # type: ignore[no-untyped-call]  # the library has no types there
    return [*zip(shown, buckets.values(), strict=True), ("+Inf", count)]
