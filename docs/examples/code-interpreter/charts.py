"""What a matplotlib figure shows, as data that a client can draw anew: lines, points, bars and pies, by the names that
E2B's code interpreter SDKs have for them. Run in each kernel; `server.py` sends what it makes as a result's `chart`.
"""

from IPython.core.formatters import BaseFormatter
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.dates import AutoDateLocator, num2date
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from traitlets import ObjectName, Unicode

MIME = "application/vnd.sandpiper.chart+json"


class ChartFormatter(BaseFormatter):
    format_type = Unicode(MIME)
    print_method = ObjectName("_repr_chart_")
    _return_type = dict


def chart_of_figure(figure):
    charts = [chart for chart in map(chart_of, figure.axes) if chart["elements"]]
    if len(charts) < 2:
        return charts[0] if charts else None
    return {"type": "superchart", "title": figure._suptitle.get_text() if figure._suptitle else "", "elements": charts}


def chart_of(axes):
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    if wedges:
        return {"type": "pie", "title": axes.get_title(), "elements": [pie_of(wedge) for wedge in wedges]}
    if bars:
        return plane("bar", axes, [bar for group in bars for bar in bars_of(axes, group)])
    dots = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    if dots:
        return points("scatter", axes, [series(one, axes, one.get_offsets()) for one in dots])
    return points("line", axes, [series(line, axes, line.get_xydata()) for line in axes.get_lines()])


def plane(kind, axes, elements):
    return {"type": kind, "title": axes.get_title(), "x_label": axes.get_xlabel(), "y_label": axes.get_ylabel(),
            "x_unit": unit(axes.get_xlabel()), "y_unit": unit(axes.get_ylabel()), "elements": elements}


def points(kind, axes, elements):
    chart = plane(kind, axes, elements)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        scale = "datetime" if isinstance(axis.get_major_locator(), AutoDateLocator) else axis.get_scale()
        chart |= {name + "_ticks": [value(axis, tick) for tick in axis.get_ticklocs()], name + "_scale": scale,
                  name + "_tick_labels": [label.get_text() for label in axis.get_ticklabels()]}
    return chart


def series(artist, axes, data):
    label = artist.get_label()
    shown = [[value(axes.xaxis, x), value(axes.yaxis, y)] for x, y in data]
    # matplotlib's own names for what nobody has named.
    return {"label": "" if label.startswith("_") else label, "points": shown}


def value(axis, number):
    if isinstance(axis.get_major_locator(), AutoDateLocator):
        return num2date(number).isoformat()
    return float(number)


def bars_of(axes, group):
    is_upright = group.orientation != "horizontal"
    axis = axes.xaxis if is_upright else axes.yaxis
    names = dict(zip(axis.get_ticklocs(), (label.get_text() for label in axis.get_ticklabels())))
    for bar in group.patches:
        middle = bar.get_x() + bar.get_width() / 2 if is_upright else bar.get_y() + bar.get_height() / 2
        label = next((name for tick, name in names.items() if abs(tick - middle) < 1e-6), str(middle))
        size = bar.get_height() if is_upright else bar.get_width()
        yield {"label": label, "group": "" if group.get_label().startswith("_") else group.get_label(), "value": float(size)}


def pie_of(wedge):
    return {"label": wedge.get_label(), "angle": float(wedge.theta2 - wedge.theta1), "radius": float(wedge.r)}


def unit(label):
    """`s` of `Time (s)`."""
    before, bracket, rest = label.rpartition("(")
    return rest[:-1] if bracket and rest.endswith(")") else None


def install(shell):
    formatter = ChartFormatter(parent=shell.display_formatter)
    formatter.for_type(Figure, chart_of_figure)
    shell.display_formatter.formatters[MIME] = formatter
