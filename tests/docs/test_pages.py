"""What the pages of the documentation show is what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.client import launcher
from everstep.client.home import Home
from everstep.providers.local import LocalProvider
from everstep.providers.local.config import EXAMPLE_CONFIG, read_config
from tests.docs import pages


@pytest.fixture
def folder(tmp_path: Path, leak_guard: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page is run, with an installation of its own; whatever it starts is ended."""
    home = Home(tmp_path / "home")
    for name in ("EVERSTEP_CHECKPOINT_DIR", "EVERSTEP_ATTEMPT", "EVERSTEP_REPORT_DIR", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EVERSTEP_HOME", str(home.path))
    here = tmp_path / "page"
    here.mkdir()
    yield here
    launcher.stop(home)
    if (home.path / "local").exists():
        asyncio.run(LocalProvider(home.path / "local").stop())


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.expensive(family="pages")
@pytest.mark.parametrize(("name", "least"), [("cloud-in-a-box", 14), ("train-library", 6), ("resume", 5)])
def test_a_page_does_what_it_shows(repository: Path, folder: Path, name: str, least: int) -> None:
    assert pages.run(repository / "docs" / f"{name}.md", folder) >= least


def test_the_configuration_on_the_page_is_the_whole_example_and_valid(repository: Path, tmp_path: Path) -> None:
    [block] = [b for b in pages.blocks(repository / "docs" / "cloud-in-a-box.md") if b.file == "example.yaml"]
    assert block.text == f"# example.yaml\n{EXAMPLE_CONFIG}"
    (tmp_path / "example.yaml").write_text(block.text)
    (tmp_path / "us-east-1b.json").write_text(
        '{"metadata": {"gap_seconds": 600}, "data": [4, 0], "prices": [1.0, 1.0]}'
    )
    assert set(read_config(tmp_path / "example.yaml").zones) == {"us-east-1a", "us-east-1b", "here"}


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("```console\n$ a=1\n$ echo $a\n2\n```\n", True),
        ("```console\n$ a=1\n$ echo $a\n1\n```\n", False),
        ('```console\n$ echo "x\ny"\nx\ny\n```\n', False),
        ("```console\n$ echo x >&2; false\nx\n```\n", False),
        ("```console\n$ true\n$ echo x; exit 3\nx\n$ echo never\nnever\n```\n", True),
        ("```python\n>>> 1 + 1\n3\n```\n", True),
        ("```python\n# a.py\nprint(1)\n```\n```console\n$ python a.py\n1\n```\n", False),
    ],
)
def test_a_page_that_shows_something_else_fails(tmp_path: Path, text: str, broken: bool) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    if broken:
        with pytest.raises(AssertionError):
            pages.run(page, tmp_path)
    else:
        assert pages.run(page, tmp_path) >= 1
