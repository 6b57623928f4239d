"""The figures of docs/figures come from results/, and their marks stand where the numbers say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
RATES = {"ours": {"median": 200.0}, "textbook": {"median": 50.0}}
SPEED = {
    "cpu": {"device": "some CPU", "threads": 2, "rates": {"training": RATES}},
    "gpu": {
        "device": "some GPU",
        "steps": {
            "textbook eager fp32, one network": {"median": 4.0},
            "10 networks at once, per network": {"median": 0.5},
        },
        "scoring": {"fp32": {"median": 400_000.0}},
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
        "device": device,
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

    monkeypatch.setattr(plots, "ROOT", tmp_path)
    monkeypatch.setattr(plots, "RESULTS", tmp_path / "results")
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
    rates = [100 / 4e-3, 100 / 0.5e-3, 400_000]  # a step has 100 images
    assert np.asarray(widths[2:]) / widths[-1] == pytest.approx(np.asarray(rates) / 400_000)
    assert [bar.colour for bar in bars] == ["normal", "muted", "muted", "normal", "normal"]
    texts = [s.text for s in drawing.shapes if isinstance(s, plots.Text)]
    for text in ("200", "50", "25,000", "200,000", "400,000", "training: 10 networks at once"):
        assert text in texts


def test_growth_in_proportion_is_a_straight_line_and_flat_memory_level(plots):
    drawing = plots.growth({"cpu": grown("some CPU", False), "gpu": grown("some GPU", True)})
    lines = [np.asarray(s.points) for s in drawing.shapes
             if isinstance(s, plots.Line) and s.colour in ("normal", "anomalous")]  # fmt: skip
    assert len(lines) == 4 + 8 + 16 + 2  # images, classes, sides of two presets, a GPU's fleet
    seconds, memory = lines[0], lines[2]
    assert np.diff(seconds, axis=0) == pytest.approx(np.diff(seconds, axis=0)[[0]].repeat(3, 0))
    assert (np.diff(seconds[:, 1]) < 0).all()  # y grows downwards
    assert np.ptp(memory[:, 1]) == 0
    texts = [s.text for s in drawing.shapes if isinstance(s, plots.Text)]
    assert {"some CPU", "some GPU", "1,000,000", "128", "networks in a fleet"} <= set(texts)
    assert texts.count("quick") == 4  # a note for each device, in both panels


def test_a_cpu_alone_has_no_fleet(plots):
    drawing = plots.growth({"cpu": grown("some CPU", False)})
    assert "networks in a fleet" not in plots.svg_file(drawing)


def test_nothing_leaves_the_page(plots):
    for drawing in (
        plots.speed(SPEED),
        plots.growth({"cpu": grown("some CPU", False), "gpu": grown("some GPU", True)}),
    ):
        for shape in drawing.shapes:
            places = [(shape.x, shape.y)] if isinstance(shape, plots.Text) else shape.points
            x, y = np.asarray(places).T
            assert (x >= 0).all() and (x <= drawing.width).all()
            assert (y >= 0).all() and (y <= drawing.height).all()
        text = plots.svg_file(drawing)
        assert re.search(r'<rect width="100%" height="100%" fill="#ffffff"', text)
