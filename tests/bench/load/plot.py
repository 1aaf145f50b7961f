"""How a figure grows: the exponent of a curve, and curves drawn as SVG. Standard library only."""

import html
import math

WIDTH, HEIGHT = 680, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 66, 54
STYLE = """
  text { font: 12px sans-serif; fill: #222 } .title { font-size: 15px; font-weight: bold }
  .paper { fill: #fff } .frame { fill: none; stroke: #666 } .grid { stroke: #ddd }
  .line, .linear { fill: none; stroke-width: 2 } .linear { stroke-dasharray: 5 5; stroke-width: 1.2 }
  .c0 { color: #0060a8 } .c1 { color: #c24e00 } .c2 { color: #007a55 }
  .line, .linear { stroke: currentColor } .dot, .key { fill: currentColor }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .paper { fill: #16181c } .frame { stroke: #999 } .grid { stroke: #383c42 }
    .c0 { color: #62b4f5 } .c1 { color: #ff9d57 } .c2 { color: #3fd0a0 }
  }
"""


def exponent(points):
    """Slope of log(y) over log(x), fitted to the upper half of the points (at least two).

    1 is linear growth, 0 none. Points are (x, y), all above 0.
    """
    points = sorted(points)
    upper = points[-max(2, (len(points) + 1) // 2):]
    logs = [(math.log(x), math.log(y)) for x, y in upper]
    x_mean, y_mean = (sum(values) / len(logs) for values in zip(*logs))
    spread = sum((x - x_mean) ** 2 for x, _ in logs)
    if spread == 0:
        raise ValueError("an exponent needs points at two places")
    return sum((x - x_mean) * (y - y_mean) for x, y in logs) / spread


def si(value, unit=""):
    """Three digits and a prefix: 1.6 GB, 250 ms, 20k."""
    steps = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}
    step = 0
    if value > 0:
        # Rounded first, so that 999.9 M is 1 G.
        step = min(4, max(-3, math.floor(math.log10(float(f"{value:.3g}")) / 3 + 1e-9)))
    number = f"{float(f'{value / 1000 ** step:.3g}'):g}"
    return f"{number} {steps[step]}{unit}" if unit else f"{number}{steps[step]}"


def ticks(low, high):
    """1, 2 and 5 of each decade between two values; only powers of ten where that were many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [m * 10.0 ** d for d in decades for m in (1, 2, 5)]
    found = [m for m in marks if low * 0.999 <= m <= high * 1.001]
    powers = [m for m in found if abs(math.log10(m) - round(math.log10(m))) < 1e-9]
    return powers if len(found) > 9 else found


def scale(low, high, start, end):
    """Logarithmic: low is drawn at start, high at end."""
    width = math.log(high / low)
    return lambda value: start + (end - start) * math.log(value / low) / width


def svg(title, x_label, series, units=("", "")):
    """One plot, both axes logarithmic: points and lines, and dashed what were linear from each first point.

    series: name -> [(x, y)], all above 0. units: of x and of y.
    """
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    low, high = min(ys) / 1.5, max(ys) * 1.5
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    across, up = scale(xs[0] / 1.1, xs[-1] * 1.1, LEFT, right), scale(low, high, bottom, TOP)
    body = [f'<text class="title" x="{LEFT}" y="24">{html.escape(title)}</text>']
    for x in xs:
        body += [f'<path class="grid" d="M{across(x):.1f} {TOP}V{bottom}"/>',
                 f'<text x="{across(x):.1f}" y="{bottom + 18}" text-anchor="middle">{si(x, units[0])}</text>']
    for y in ticks(low, high):
        body += [f'<path class="grid" d="M{LEFT} {up(y):.1f}H{right}"/>',
                 f'<text x="{LEFT - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{si(y, units[1])}</text>']
    body += [f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(x_label)}</text>',
             f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>']
    body.append(f'<text x="{right}" y="51" text-anchor="end">dashed: if linear from the first point</text>')
    for number, (name, points) in enumerate(series.items()):
        body += _curve(number, name, sorted(points), across, up)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" role="img" aria-label="{html.escape(title)}">\n<style>{STYLE}</style>\n'
            f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'
            f'</clipPath>\n<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n' + "\n".join(body) + "\n</svg>\n")


def _curve(number, name, points, across, up):
    (first, value), last = points[0], points[-1][0]
    places = [f"{across(x):.1f} {up(y):.1f}" for x, y in points]
    linear = f"M{places[0]}L{across(last):.1f} {up(value * last / first):.1f}"
    key = LEFT + 200 * number
    return [f'<g class="c{number % 3}">',
            f'<path class="linear" clip-path="url(#inside)" d="{linear}"/>',
            f'<path class="line" d="M{"L".join(places)}"/>',
            *(f'<circle class="dot" cx="{place.split()[0]}" cy="{place.split()[1]}" r="3.5"/>' for place in places),
            f'<rect class="key" x="{key}" y="40" width="12" height="12"/>',
            f'<text x="{key + 18}" y="51">{html.escape(name)}</text>', "</g>"]
