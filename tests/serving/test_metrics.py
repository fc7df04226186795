"""The text that Prometheus reads."""

from padir.serving.metrics import Counter, Histogram, Metrics


def test_counters_escape_their_labels():
    counter = Counter("n_total", "N.", ("path",))
    counter.add('a"\\\n')
    counter.add("b", by=2.5)
    assert counter.lines() == ['n_total{path="a\\"\\\\\\n"} 1', 'n_total{path="b"} 2.5']
    assert Counter("m", "M.").lines() == ["m 0"]


def test_histograms_are_cumulative_and_edges_belong_below():
    histogram = Histogram("h", "H.", (1, 2.5))
    for value in (0.5, 1, 2, 9):
        histogram.observe(value)
    assert histogram.lines() == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="2.5"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 12.5",
        "h_count 4",
    ]


def test_everything_has_help_and_type():
    metrics = Metrics()
    metrics.gauge("padir_ready", "Ready.", lambda: True)
    lines = metrics.render().splitlines()
    assert lines[-3:] == ["# HELP padir_ready Ready.", "# TYPE padir_ready gauge", "padir_ready 1"]
    assert sum(line.startswith("# TYPE") for line in lines) == sum(line.startswith("# HELP") for line in lines) == 9
