"""Objects of the standard library that do not pickle: kept, or made anew of the same parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.train.script import graph
from tests.train.script.graph.relaunch import Script, assert_exact

CASES = {
    "csv.writer on a buffer, kept under two names": """
import csv, io
log = io.StringIO()
first = csv.writer(log, delimiter=";", quoting=csv.QUOTE_NONNUMERIC)
last = None
def step(i):
    global last
    last = csv.writer(log) if i == 1 else last
    (last or first).writerow([i, "a;b", None])
def show(): return log.getvalue()
""",
    "csv.DictWriter": """
import csv, io
log, extra = io.StringIO(), []
writer = csv.DictWriter(log, ["step", "loss"], extrasaction="ignore")
writer.writeheader()
def step(i):
    writer.writerow({"step": i, "loss": i / 3, "other": 0})
    if i == 1: writer.fieldnames.append("other")
def show(): return log.getvalue()
""",
    "csv.writer on an object with write": """
import csv
class Lines:
    def __init__(self): self.rows = []
    def write(self, text): self.rows.append(text)
lines = Lines()
writer = csv.writer(lines)
def step(i): writer.writerow([i])
def show(): return lines.rows
""",
    "dialects": """
import csv, io
dialect, log = None, io.StringIO()
def step(i):
    global dialect
    if i == 1: dialect = csv.writer(io.StringIO(), delimiter="|", lineterminator="~").dialect
    csv.writer(log, dialect or "excel").writerow([i, i])
def show(): return log.getvalue()
""",
    "struct.Struct": """
import struct
form, data = struct.Struct("<i"), b""
def step(i):
    global form, data
    if i == 1: form = struct.Struct(">hd")
    data += form.pack(i) if form.size == 4 else form.pack(i, i / 2)
def show(): return data
""",
    "patterns and matches": """
import re
pattern, match = re.compile("a+"), None
def step(i):
    global pattern, match
    if i == 1: pattern = re.compile(r"(?P<x>b)|(?<=b)c$", re.I)
    match = list(pattern.finditer("aab" * (i + 1) + "C"))[-1]
def show(): return pattern.pattern, match.groups(), match.span(), match.pos, match.string
""",
    "operator objects": """
import operator
get, name, call, found = operator.itemgetter(0), operator.attrgetter("real"), operator.methodcaller("upper"), []
def step(i):
    global get, name, call
    if i == 1:
        get, name, call = operator.itemgetter(1, 0), operator.attrgetter("imag"), operator.methodcaller("split", "b")
    found.append((get("xy"), name(3), call("abc")))
def show(): return found
""",
    "views of a dict": """
import types
inner = {"lr": 0.1}
view, other = types.MappingProxyType(inner), None
def step(i):
    global other
    inner["lr"] += i
    if i == 1: other = types.MappingProxyType(inner)
def show(): return view["lr"], other and other["lr"], inner
""",
    "keys that compare by a function": """
import functools
calls = []
def compare(a, b):
    calls.append((a, b))
    return b - a
key, one = functools.cmp_to_key(compare), None
def step(i):
    global one
    one = key(i)
    calls.append((one < key(3), sorted([i, 2, 5], key=key)))
def show(): return calls, one and one.obj
""",
}


@pytest.mark.parametrize("name", CASES)
def test_goes_on_as_it_would_have(name: str) -> None:
    assert_exact(CASES[name])


def test_a_writer_stays_on_the_file_that_stays(tmp_path: Path) -> None:
    source = f"import csv\nfile = open({str(tmp_path / 'log.csv')!r}, 'a')\nwriter = csv.DictWriter(file, ['a'])\n"
    script = Script(source)
    captured = script.capture()
    script.module.file.close()
    assert captured.problems == []
    again = Script(source)
    file, inner = again.module.file, again.module.writer.writer
    again.restore(captured)
    assert again.module.file is file
    assert again.module.writer.writer is inner
    again.module.writer.writerow({"a": 3})
    file.close()
    assert (tmp_path / "log.csv").read_text().split() == ["3"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import csv, types\nw = csv.writer(types.SimpleNamespace(write=lambda text: 0))", "no method `write`"),
        ("class A: pass\nw = A.__dict__", "namespace of a class"),
        ("import hashlib\nw = hashlib.sha256(b'x')", "does not pickle"),
    ],
)
def test_what_has_more_state_is_a_problem(source: str, why: str) -> None:
    [problem] = Script(source).capture().problems
    assert why in problem.why
    assert isinstance(problem, graph.Problem)
