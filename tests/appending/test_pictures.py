"""The picture has every setting of ours, and the thesis's beside them."""

import pytest

from padir.appending import pictures, thesis
from padir.appending.protocol import Row


def points_of(axes):
    """Where each setting of the legend stands."""
    return dict(zip([text.get_text() for text in axes.get_legend().get_texts()], of_containers(axes), strict=True))


def of_containers(axes):
    return [(float(each[0].get_xdata()[0]), float(each[0].get_ydata()[0])) for each in axes.containers]


def test_every_setting_is_a_point(tmp_path, figures):
    rows = {
        "plain": Row((0.5, 0.02), (1000.0, 10.0), 20.0, 5),
        "backtracking, layer 2": Row((0.6, 0.01), (1080.0, 12.0), 24.0, 5),
        "block best of 4": Row((0.55, 0.03), (3900.0, 50.0), 22.0, 5),
    }
    pictures.draw(tmp_path / "e2.png", rows, "ours")
    assert (tmp_path / "e2.png").read_bytes()[:4] == b"\x89PNG"
    ours, theirs = figures[0].axes
    assert points_of(ours) == {name: (row.accuracy[0], row.queries[0]) for name, row in rows.items()}
    shown = points_of(theirs)
    assert shown["Q4 B4, layer 27, 0.1; 0.95, 1.0"] == (0.714, 39443)
    # Of sampling alone the best setting; a row without its tokens has no place.
    assert [name for name in shown if name.startswith("plain")] == [thesis.plain_name(0.95, 1.0)]
    assert len(shown) == 14 and thesis.backtracking_name(10, 4, 27, 0.1, 0.95, 1.0) not in shown
    assert [axes.get_yscale() for axes in (ours, theirs)] == ["log", "log"]
    assert ours.get_ylim()[0] < 1000 < 3900 < ours.get_ylim()[1]
    labels = [float(label.get_text().replace(",", "")) for label in ours.get_yticklabels()]
    assert labels == pytest.approx(list(ours.get_yticks()), abs=0.5) and len(labels) == 6
