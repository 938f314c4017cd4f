from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from everstep.cli.demo import figures, page, picture
from everstep.cli.demo.timeline import Lane, Phase, Span, Timeline, timeline
from tests.cli.demo import recorded


@pytest.fixture
def drawn() -> Timeline:
    journal = recorded.journal()
    return timeline(figures.fold(journal), recorded.ACTS, journal[-1]["at"])


def test_lanes_have_no_gap_from_a_machines_start_to_its_end(drawn: Timeline) -> None:
    assert [(lane.name, lane.market, lane.end) for lane in drawn.lanes] == [
        ("i-1", "spot", "owner"),
        ("i-2", "spot", "preempted"),
        ("i-3", "on-demand", "owner"),
    ]
    for lane, (start, end) in zip(drawn.lanes, [(0, 75), (0, 38), (31, 75)], strict=True):
        assert (lane.spans[0].start_s, lane.spans[-1].end_s) == (start, end)
        assert all(a.end_s == b.start_s for a, b in zip(lane.spans, lane.spans[1:], strict=False))
    assert drawn.lanes[1].notice_s == 30


def test_a_machine_is_shown_at_what_it_did(drawn: Timeline) -> None:
    assert drawn.lanes[1].spans == (
        Span(0, 1, Phase.BOOT),
        Span(1, 3, Phase.SETUP),
        Span(3, 5, Phase.IDLE),
        Span(5, 8, Phase.RESTORE),
        Span(8, 37, Phase.TRAIN),
        Span(37, 38, Phase.IDLE),
    )


def test_the_curve_falls_back_to_where_the_next_attempt_began(drawn: Timeline) -> None:
    first, second = drawn.curve
    assert first == ((8.0, 0), (20.0, 150), (31.0, 200), (37.0, 210))
    assert second == ((43.0, 200), (73.0, 400))
    assert drawn.most_steps == 400


def test_the_svg_is_well_formed_and_shows_every_machine_and_fault(drawn: Timeline) -> None:
    svg = picture.as_svg(drawn)
    root = ElementTree.fromstring(svg)
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for words in ("i-2  harbour-a  spot", "x preempted", "1  29 s  a child lost with notice", "step 400"):
        assert words in texts
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", ""), "needs nothing else"


def test_nothing_leaves_the_picture(drawn: Timeline) -> None:
    root = ElementTree.fromstring(picture.as_svg(drawn))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(box.get("x", 0)) <= float(box.get("x", 0)) + float(box.attrib["width"]) <= width
        assert 0 <= float(box.get("y", 0)) <= float(box.get("y", 0)) + float(box.attrib["height"]) <= height


def test_a_job_that_never_got_a_machine_can_be_drawn() -> None:
    journal = recorded.journal()[:1]
    empty = timeline(figures.fold(journal), (), journal[0]["at"])
    assert ElementTree.fromstring(picture.as_svg(empty)) is not None


def test_the_png_is_one(drawn: Timeline, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="PNG needs matplotlib")
    assert picture.write_png(drawn, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_matplotlib_there_is_no_png(drawn: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not picture.write_png(drawn, tmp_path / "t.png")
    assert list(tmp_path.iterdir()) == []


def test_the_page_tells_the_figures_and_escapes_what_it_quotes(drawn: Timeline) -> None:
    found = figures.summary(recorded.journal(), recorded.meter(), weights_sha256="a", reference_sha256="b")
    acts = [{"at": recorded.ZERO + 1, "step": 3, "what": "<script>", "target": "i-1"}]
    html = page.page(found, picture.as_svg(drawn), acts, recorded.ZERO)
    assert "DIFFERENT" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "400, of which 10 had to be done twice" in html


def test_labels_of_lanes_begin_inside_the_picture(drawn: Timeline) -> None:
    root = ElementTree.fromstring(picture.as_svg(replace(drawn, lanes=tuple(_renamed(lane) for lane in drawn.lanes))))
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        if text.get("text-anchor") == "end":
            # 0.55 em is a generous mean width of a letter in a sans-serif face.
            assert float(text.attrib["x"]) - 0.55 * float(text.attrib["font-size"]) * len(text.text or "") >= 0, (
                text.text
            )


def _renamed(lane: Lane) -> Lane:
    """With names as long as those of real runs."""
    return replace(lane, name="i-038228fcb77e", zone="harbour-a", market="on-demand")
