"""Plots of an evaluation; names are drawn as they are written."""

import pytest
from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.evaluation.plots import by_distance, plot_by_bytes, plot_by_distance, plot_by_flops, plot_by_position
from onward_studies.engine.reporting import Report, Table, write

NAMES = [r"$\frac$", "$x_1$", r"a\$b$", "$", "|", "a|b\nc", "x_y^z{", "é ü ▁ 中"]


def test_plots_tell_variants_apart_without_colour(window_rows):
    _, found, _ = window_rows
    measured = [row for row in found if row.measures]
    panels = plot_by_position(measured).axes
    assert [panel.get_title() for panel in panels] == ["overlap 0", "overlap 3"]
    for panel in (*panels, *plot_by_flops(measured).axes, *plot_by_bytes(measured).axes):
        styles = [(line.get_marker(), line.get_linestyle()) for line in panel.lines]
        assert len(styles) >= 4 and len({marker for marker, _ in styles}) == len(styles)
    assert min(panels[1].lines[0].get_xdata()) >= 3


def test_perplexity_stands_over_the_bytes_of_each_memory(window_rows):
    _, found, _ = window_rows
    (panel,) = plot_by_bytes(found).axes
    drawn = {line.get_label(): set(line.get_xdata()) for line in panel.lines}
    assert drawn == {row.variant: {row.state_bytes} for row in found}
    assert drawn["plain"] == {0} and panel.get_xlim()[0] < 0


def test_the_picture_has_loss_by_distance(block_rows):
    measures = block_rows[1][0].measures
    places, losses = by_distance(measures, points=100)
    assert places[:2] == [4, 12] and len(places) == len(measures.by_window.counts)
    assert losses[1] == pytest.approx(measures.by_window.means[1] / 0.6931471805599453)
    places, losses = by_distance(measures, points=2)
    half = -(-len(measures.by_window.counts) // 2)
    assert places[0] == 8 * half / 2
    tokens = sum(measures.by_window.counts[:half])
    assert losses[0] == pytest.approx(sum(measures.by_window.sums[:half]) / tokens / 0.6931471805599453)
    markers = [line.get_marker() for line in plot_by_distance(block_rows[1]).axes[0].lines]
    assert len(set(markers)) == 3


@pytest.mark.filterwarnings("ignore:Glyph")
def test_pictures_show_names_as_they_are(tmp_path):
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in NAMES:
        left.plot([1, 2], [1e-9, 1e9], label=name)
    left.set_yscale("log")
    left.set_title(NAMES[0])
    left.set_xlabel(NAMES[1])
    left.legend()
    right.barh(range(len(NAMES)), range(len(NAMES)))
    right.set_yticks(range(len(NAMES)), NAMES)
    right.annotate(NAMES[0], (1, 1))
    figure.legend(title=NAMES[0], loc="outside upper center")
    plots.save(figure, tmp_path / "v1.5")
    drawn = (tmp_path / "v1.5.svg").read_text(encoding="utf-8")
    assert drawn.count(r">$\frac$<") >= 4 and ">$x_1$<" in drawn
    assert r">$\mathdefault" not in drawn, "numbers of a logarithmic axis stay formulas"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["v1.5.png", "v1.5.svg"]
    write(Report("title", "said", [Table("t", NAMES, [NAMES])], {"f": figure}), tmp_path / "page", {}, {})
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert page.count(r">$\frac$<") >= 4
