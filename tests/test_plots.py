"""The figures of docs/figures come from results/, and their marks stand where the numbers say."""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
MADE = {"commit": "c0ffee", "versions": {"torch": "2.13"}}
RATES = {"ours": {"median": 200.0}, "textbook": {"median": 50.0}}
SPEED = {
    "cpu": {"device": "some CPU", "threads": 2, "rates": {"training": RATES}} | MADE,
    "gpu": {
        **MADE,
        "device": "some GPU",
        "batch": 50,
        "training precision": "bf16",
        "steps": {
            "textbook eager, TF32, one network": {"median": 4.0},
            "10 networks at once, per network": {"median": 0.5},
        },
        "scoring": {"textbook eager, TF32": {"median": 100_000.0}, "fp32": {"median": 400_000.0}},
    },
}


def grown(device: str, fleet: bool) -> dict:
    def row(preset, side, classes):
        return {
            "preset": preset, "side": side, "classes": classes,
            "training ms a step": 5.0 * classes, "training peak MiB": 300 + side,
            "scoring µs an image": 7.0 * side, "scoring peak MiB": 200 + side,
        }  # fmt: skip

    return {
        **MADE,
        "device": device,
        "batch": 50,
        "images": [
            {"preset": "quick", "side": 8, "images": 10**k, "seconds": 10.0 ** (k - 5),
             "peak MiB": 50}
            for k in (3, 4, 5, 6)
        ],
        "classes": [row("paper", 28, classes) for classes in (2, 10, 100)],
        "side": [row("paper", 28, 9), row("paper", 48, 9), row("quick", 28, 9),
                 row("quick", 128, 9)],
        "fleet": [{"networks": n, "ms a step and network": 0.5, "peak MiB": 100 * n}
                  for n in (1, 2, 4)] if fleet else [],
    }  # fmt: skip


@pytest.fixture
def plots(monkeypatch, tmp_path):
    """The script, over empty folders."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import plots
    import resultfiles

    monkeypatch.setattr(plots, "ROOT", tmp_path)
    monkeypatch.setattr(resultfiles, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(plots, "FIGURES", tmp_path / "figures")
    (tmp_path / "results").mkdir()
    return plots


def test_figures_are_what_results_say():
    """Those without results are passed over by the script."""
    script = [sys.executable, ROOT / "benchmarks" / "plots.py", "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_results_nothing_is_drawn(plots, tmp_path):
    plots.main(check=False)
    assert not (tmp_path / "figures").exists()


def test_a_figure_that_is_not_what_results_say_is_found(plots, tmp_path):
    path, stale = tmp_path / "results" / "speed-cpu.json", r"figures/speed\.svg: not what"
    path.write_text(json.dumps(SPEED["cpu"]))
    with pytest.raises(SystemExit, match=stale):
        plots.main(check=True)
    assert not (tmp_path / "figures").exists()
    plots.main(check=False)
    assert "some CPU" in (tmp_path / "figures" / "speed.svg").read_text("utf-8")
    plots.main(check=True)
    path.write_text(json.dumps(SPEED["cpu"] | {"threads": 3}))
    with pytest.raises(SystemExit, match=stale):
        plots.main(check=True)


def test_bars_are_as_long_as_their_rates(plots):
    drawing = plots.speed(SPEED)
    bars = [s for s in drawing.shapes if isinstance(s, plots.Area)][2:]  # after the key
    widths = [np.ptp(np.asarray(bar.points)[:, 0]) for bar in bars]
    assert widths[0] / widths[1] == pytest.approx(200 / 50)
    rates = [50 / 4e-3, 50 / 0.5e-3, 100_000, 400_000]  # a step has 50 images
    assert np.asarray(widths[2:]) / widths[-1] == pytest.approx(np.asarray(rates) / 400_000)
    assert [b.colour for b in bars] == ["normal", "muted", "muted", "normal", "muted", "normal"]
    texts = [s.text for s in drawing.shapes if isinstance(s, plots.Text)]
    assert {"200", "50", "12,500", "100,000", "400,000"} <= set(texts)
    assert {"training, textbook eager, TF32", "training, 10 networks at once, bf16"} <= set(texts)


def test_a_cpu_is_named_by_its_model(plots):
    cpu = SPEED["cpu"] | {"processor": {"model": "a chip", "cores": 4}}
    gpu = SPEED["gpu"] | {"processor": {"model": "a host", "cores": 4}}
    texts = [s.text for s in plots.speed({"cpu": cpu, "gpu": gpu}).shapes
             if isinstance(s, plots.Text)]  # fmt: skip
    assert {"a chip, 2 threads, fp32", "some GPU"} <= set(texts)


def test_growth_in_proportion_is_a_straight_line_and_flat_memory_level(plots):
    found = {"cpu": grown("some CPU", False), "gpu": grown("some GPU", True)}
    found["cpu"]["side"] += [row | {"preset": "deep"} for row in found["cpu"]["side"][-2:]]
    drawing = plots.growth(found)
    lines = [np.asarray(s.points) for s in drawing.shapes
             if isinstance(s, plots.Line) and s.colour in ("normal", "anomalous")]  # fmt: skip
    # images, classes, sides of two presets and of deep on a CPU, a GPU's fleet
    assert len(lines) == 4 + 8 + 16 + 4 + 2
    seconds, memory = lines[0], lines[2]
    assert np.diff(seconds, axis=0) == pytest.approx(np.diff(seconds, axis=0)[[0]].repeat(3, 0))
    assert (np.diff(seconds[:, 1]) < 0).all()  # y grows downwards
    assert np.ptp(memory[:, 1]) == 0
    texts = [s.text for s in drawing.shapes if isinstance(s, plots.Text)]
    assert {"some CPU", "some GPU", "1,000,000", "128", "networks in a fleet"} <= set(texts)
    assert texts.count("quick") == 4  # a note for each device, in both panels
    assert texts.count("deep") == 2  # measured on one of them
    # Times of classes: 5 ms a class in a step of 50 images, 100 µs an image and class; 196 scored.
    training, scoring = lines[4], lines[5]
    apart = np.log10([200 / 196, 10_000 / 200])  # at 2 classes; of training from 2 to 100
    heights = [scoring[0, 1] - training[0, 1], training[0, 1] - training[-1, 1]]
    assert heights[0] / heights[1] == pytest.approx(apart[0] / apart[1], rel=1e-3)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.44, 0.58], [0.2, 0.5, 1]),
        ([408, 9184], [200, 500, 1000, 2000, 5000, 10_000]),
        ([0.006, 40], [0.001, 0.01, 0.1, 1, 10, 100]),
        ([50, 50], [50, 100]),
        ([100, 1000], [100, 200, 500, 1000]),
    ],
)
def test_an_axis_begins_and_ends_at_a_tick(plots, values, ticks):
    assert plots._ticks(values) == ticks


def test_notes_of_curves_that_end_close_together_are_moved_apart(plots):
    ends = [(90.0, 50.0, "a", "normal"), (90.0, 47.0, "b", "normal"), (30.0, 48.0, "c", "normal")]
    notes = [s for s in plots._notes(ends, []) if isinstance(s, plots.Text)]
    heights = {note.text: note.y - 4 for note in notes}
    assert heights["b"] < heights["a"] and heights["c"] == 48
    for a, b in combinations(map(box, notes), 2):
        assert not plots._overlap(a, b)


def test_no_note_lies_on_a_curve(plots):
    curve = [(0.0, 50.0), (40.0, 50.0)]
    for other in ([(0.0, 52.0), (100.0, 48.0)], [(40.0, 20.0), (100.0, 60.0)]):
        [note] = [
            s for s in plots._notes([(40.0, 50.0, "paper", "normal")], [curve, other])
            if isinstance(s, plots.Text)
        ]  # fmt: skip
        left, top, right, bottom = box(note)
        xs = np.linspace(left, right, 50)
        (x0, y0), (x1, y1) = other
        passed = y0 + (y1 - y0) * (xs - x0) / (x1 - x0)
        assert ((passed < top) | (passed > bottom) | (xs < x0)).all(), note
        assert abs(note.y - 4 - 50) <= 21  # and is near its end


def test_figures_say_which_version_each_file_is_of(plots):
    late = MADE | {"commit": "fa11"}
    for drawing in (
        plots.speed({"cpu": SPEED["cpu"], "gpu": SPEED["gpu"] | late}),
        plots.growth({"cpu": grown("some CPU", False), "gpu": grown("some GPU", True) | late}),
    ):
        last = drawing.shapes[-1]
        assert "cpu.json: commit c0ffee, torch 2.13; results/" in last.text
        assert "gpu.json: commit fa11" in last.text


def test_a_cpu_alone_has_no_fleet(plots):
    drawing = plots.growth({"cpu": grown("some CPU", False)})
    assert "networks in a fleet" not in plots.svg_file(drawing)


# Widths of Arial's letters, as shares of the type size; bold is a little wider.
NARROW, WIDE = frozenset("fijlrtI1.,:;!|'()[]/ -"), frozenset("mwMWQO@%→")


def box(text) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of a text, by an estimate of its width."""
    letters = sum(
        0.33 if c in NARROW else 0.85 if c in WIDE else 0.7 if c.isupper() else 0.56
        for c in text.text
    )
    width = letters * text.size * (1.07 if text.bold else 1)
    left = text.x - width * {"start": 0, "middle": 0.5, "end": 1}[text.anchor]
    return left, text.y - 0.75 * text.size, left + width, text.y + 0.2 * text.size


@pytest.fixture
def drawings(plots, monkeypatch):
    """Of made-up results, and of those that are there."""
    import resultfiles

    monkeypatch.setattr(resultfiles, "RESULTS", ROOT / "results")
    made_up = {"cpu": grown("some CPU", False), "gpu": grown("some GPU", True)}
    return [
        *map(plots.speed, (SPEED, plots.results("speed"))),
        *map(plots.growth, (made_up, plots.results("growth"))),
    ]


def test_nothing_leaves_the_page(plots, drawings):
    for drawing in drawings:
        for shape in drawing.shapes:
            if isinstance(shape, plots.Text):
                left, top, right, bottom = box(shape)
                places = [(left, top), (right, bottom)]
            else:
                places = shape.points
            x, y = np.asarray(places).T
            assert (x >= 0).all() and (x <= drawing.width).all(), shape
            assert (y >= 0).all() and (y <= drawing.height).all(), shape
        text = plots.svg_file(drawing)
        assert re.search(r'<rect width="100%" height="100%" fill="#ffffff"', text)


def test_no_text_covers_another(plots, drawings):
    for drawing in drawings:
        texts = [shape for shape in drawing.shapes if isinstance(shape, plots.Text)]
        for a, b in combinations(texts, 2):
            (left, top, right, bottom), (l2, t2, r2, b2) = box(a), box(b)
            assert left >= r2 or l2 >= right or top >= b2 or t2 >= bottom, (a, b)
