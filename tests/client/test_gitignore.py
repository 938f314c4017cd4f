from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.client.gitignore import is_ignored, read_rules

FILES = ["a", "b.a", "a b", "ab/a", "ab/b/a", "b/ab", "-", "b/-a/!", "[a]", "b/a/b/a/b", "#a", "!a", "a ", "a\\b"]


@pytest.mark.parametrize(
    ("pattern", "name", "is_folder", "ignored"),
    [
        ("*.log", "x/y.log", False, True),
        ("/*.log", "x/y.log", False, False),
        ("x/y", "z/x/y", False, False),
        ("**/x/y", "z/x/y", False, True),
        ("build/", "build", False, False),
        ("build/", "a/build", True, True),
        ("a/**", "a", True, False),
        ("a/**", "a/b/c", False, True),
        ("a/**/b", "a/b", False, True),
        ("a/**/b", "a/x/y/b", False, True),
        ("a/*", "a/b/c", False, False),
        ("a?c", "a/c", False, False),
        ("a[/]c", "a/c", False, False),
        ("[!a]", "b", False, True),
        ("[a-c]x", "bx", False, True),
        ("[]]", "]", False, True),
        ("[[:digit:]]", "7", False, True),
        (r"\*", "*", False, True),
        (r"\*", "x", False, False),
        (r"\#x", "#x", False, True),
        (r"\!x", "!x", False, True),
        ("#x", "#x", False, False),
        ("x ", "x", False, True),
        (r"x\ ", "x ", False, True),
        ("[z-a]", "z", False, True),
        ("[z-a]", "m", False, False),
        ("/", "x", False, False),
        ("(x|y)+.$", "(x|y)+.$", False, True),
    ],
)
def test_patterns(pattern: str, name: str, is_folder: bool, ignored: bool) -> None:
    assert is_ignored(name, (read_rules([pattern]),), is_folder=is_folder) is ignored


def test_the_last_line_and_the_deepest_file_decide() -> None:
    top = read_rules(["*.log", "!keep.log", "keep.*"])
    inner = read_rules(["!a.log\r\n"], prefix="d/")
    assert is_ignored("d/keep.log", (top, inner), is_folder=False)
    assert not is_ignored("d/a.log", (top, inner), is_folder=False)
    assert is_ignored("d/b.log", (top, inner), is_folder=False)
    assert not is_ignored("d/x", (top, inner), is_folder=False)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git as the judge")
@settings(max_examples=60, deadline=None)
@given(patterns=st.lists(st.text("ab/*?[]!\\ -.#^", max_size=8), min_size=1, max_size=3))
def test_git_agrees_on_any_pattern(tmp_path_factory: pytest.TempPathFactory, patterns: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "judge"
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(root)}
    if not root.exists():
        root.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=root, check=True, env=environment)
        for name in FILES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("")
    (root / ".git" / "info" / "exclude").write_text("\n".join(patterns) + "\n")
    command = ["git", "ls-files", "-o", "-z", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, env=environment, capture_output=True, text=True)
    assert _walk(root, patterns) == sorted(listed.stdout.split("\0")[:-1])


def _walk(root: Path, patterns: list[str]) -> list[str]:
    rules = (read_rules(patterns),)
    kept = []
    for folder, folders, files in os.walk(root):
        prefix = os.path.relpath(folder, root) + "/" if Path(folder) != root else ""
        folders[:] = [f for f in folders if f != ".git" and not is_ignored(prefix + f, rules, is_folder=True)]
        kept += [prefix + f for f in files if not is_ignored(prefix + f, rules, is_folder=False)]
    return sorted(kept)
