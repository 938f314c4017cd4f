"""Files that cannot be read, flags, secrets, local paths; and that nothing but BadInput ever comes out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.client.taskfile import LoadedTask, LocalMount, Override, load_task, task_from_dict
from everstep.client.taskfile.fields import TABLE
from everstep.client.taskfile.nodes import MAX_CHARS
from everstep.model.errors import BadInput
from everstep.model.offers import AcceleratorWish
from everstep.model.task import Mount, SpotMode


def _problems(*args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        load_task(*args, **kwargs)
    return [str(problem) for problem in caught.value.problems]


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("\ufeffname: märz\n".replace("märz", "march") + "run: echo ü\n", encoding="utf-8")
    loaded = load_task(file)
    assert (loaded.task.name, loaded.task.run, loaded.source) == ("march", "echo ü", str(file))


def test_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("run: echo")
    assert _problems(tmp_path / "trian.yaml") == [
        f"{tmp_path}/trian.yaml: there is no such file; did you mean 'train.yaml'?"
    ]
    assert _problems(tmp_path / "TRAIN.yml") == [
        f"{tmp_path}/TRAIN.yml: there is no such file; did you mean 'train.yaml'?"
    ]
    assert _problems(tmp_path / "nowhere" / "x.yaml") == [f"{tmp_path}/nowhere/x.yaml: there is no such file"]


def test_an_ending_in_common_is_no_likeness(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("run: echo")
    for name in ("eval.yaml", "abc.yaml"):
        assert _problems(tmp_path / name) == [f"{tmp_path}/{name}: there is no such file"]


def test_a_folder(tmp_path: Path) -> None:
    assert _problems(tmp_path) == [f"{tmp_path}: expected a task file, found a folder"]
    (tmp_path / "a.yaml").write_text("run: echo")
    assert _problems(tmp_path) == [
        f"{tmp_path}: expected a task file, found a folder; did you mean '{tmp_path}/a.yaml'?"
    ]


def test_a_path_that_is_none() -> None:
    assert _problems("a\0b") == ["a\0b: cannot be read: not a path"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("run: echo")
    file.chmod(0)
    assert _problems(file) == [f"{file}: cannot be read: permission denied"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ": the file is empty; a task needs at least run: with the commands to run"),
        (b"run: \x00\x01", ": not a text file: it holds zero bytes; save it as UTF-8 text"),
        (b"\x7fELF\x02\x01\x01\x00\x00", ": not a text file: it holds zero bytes; save it as UTF-8 text"),
        (b"name: x\nrun: \xff\xfe", ":2: not a text file: not valid UTF-8; save it as UTF-8 text"),
        ("run: echo".encode("utf-16"), ": not a text file: it holds zero bytes; save it as UTF-8 text"),
        (b"#" * (4 * MAX_CHARS + 1), ": the file is too large: at most 1 MiB are read"),
        (b"#" * (MAX_CHARS + 1), ": the file has 262,145 characters, at most 262,144 are read"),
    ],
)
def test_what_is_no_task_file(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_bytes(content)
    assert _problems(file) == [f"{file}{said}"]


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert _problems("t", text="\n".join(lines)) == [
        "t:5: more than 20,000 values, counted with every alias (*name) written out"
    ]


def test_a_bomb_of_merges_is_refused() -> None:
    lines = ["m0: &m0 {" + ", ".join(f"k{i}: 1" for i in range(100)) + "}"]
    lines += [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}" for i in range(1, 9)]
    assert _problems("t", text="\n".join(lines)) == [
        "t:3: more than 20,000 values, counted with every alias (*name) written out"
    ]


def test_a_hopeless_file_is_not_read_to_its_end() -> None:
    said = _problems("t", text="".join(f"key{i}: 1\n" for i in range(20_000 // 2 - 10)))
    assert len(said) == 50
    assert said[49].startswith("t:50: key49: unknown key")
    said = _problems("t", text="run: a\n" * 1000)
    assert len(said) == 50


# --- flags -----------------------------------------------------------------------------------------------------------


def _load(text: str = "run: echo", **kwargs: Any) -> LoadedTask:
    return load_task("task.yaml", text=text, **kwargs)


def test_overrides_win_and_make_sections() -> None:
    overrides = [
        Override("--gpus", "resources.accelerators", "A100:8"),
        Override("--num-nodes", "num_nodes", 3),
        Override("--spot", "resources.spot", True),
    ]
    task = _load("run: echo\nnum_nodes: 2", overrides=overrides).task
    assert task.gang.size == 3
    assert task.gang.groups[0].machine.accelerators == (AcceleratorWish("A100", 8),)
    assert task.spot is SpotMode.TRUE


@pytest.mark.parametrize("own", ["use_spot: false", "spot: false", "cpus: 4"])
def test_an_override_wins_over_every_spelling(own: str) -> None:
    task = _load(f"run: echo\nresources: {{{own}}}", overrides=[Override("--spot", "resources.spot", "true")]).task
    assert task.spot is SpotMode.TRUE


def test_an_override_of_an_alias_wins_too() -> None:
    text = "run: echo\nresources: {gpus: V100}"
    task = _load(text, overrides=[Override("--gpus", "resources.accelerators", "T4:2")]).task
    assert task.gang.groups[0].machine.accelerators == (AcceleratorWish("T4", 2),)


def test_an_override_of_what_alternatives_say_is_refused() -> None:
    text = "run: echo\nresources:\n  any_of: [{gpus: V100}, {gpus: A100}]"
    overrides = [Override("--gpus", "resources.accelerators", "T4:2")]
    assert _problems("task.yaml", text=text, overrides=overrides) == [
        "--gpus: resources.accelerators: the alternatives of any_of say this themselves; see task.yaml:3"
    ]


def test_an_override_of_a_section_that_is_none_is_refused_or_wins() -> None:
    assert _load("run: echo\nresources:", overrides=[Override("--spot", "resources.spot", "auto")]).task.run == "echo"
    assert _problems("t", text="resources: [1]\nrun: x", overrides=[Override("--spot", "resources.spot", "auto")]) == [
        "t:1: resources: expected a mapping with keys such as accelerators and infra, found a list"
    ]


def test_a_wrong_flag_is_named() -> None:
    overrides = [Override("--gpus", "resources.accelerators", "A100:none")]
    assert _problems("task.yaml", text="run: echo", overrides=overrides) == [
        "--gpus: resources.accelerators: expected a whole number of accelerators from 1 to 1024, found 'A100:none'"
    ]


def test_variables_of_flags_are_checked() -> None:
    assert _problems("t", text="run: echo", envs={"A-B": "1", "EVERSTEP_X": "1"}, secrets={"hunter2!": "x"}) == [
        "--env: 'A-B' is not the name of an environment variable; write --env NAME=VALUE",
        "--env: EVERSTEP_X: names that start with EVERSTEP_ are set by everstep",
        "--secret: that is not the name of an environment variable; write --secret NAME=VALUE",
    ]


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_are_in_no_text_even_by_an_alias() -> None:
    text = "secrets: {T: &s hunter2-long}\nnum_nodes: *s\nname: x hunter2-long y\nrun: echo"
    said = "\n".join(_problems("t", text=text))
    assert "hunter2" not in said
    assert "'***'" in said


def test_secrets_that_are_refused_are_masked_too() -> None:
    text = "secrets: {bad-name: &s hunter2-long, L: [&t hunter2-list]}\nnum_nodes: *s\npolicy: [*t]\nname: *t\nrun: x"
    said = "\n".join(_problems("t", text=text))
    assert "num_nodes: expected a whole number of machines from 1 to 10000, found '***'" in said
    assert "hunter2" not in said


@given(st.text(alphabet="ab:*&!{}[]'\"%@`#-> \n\t", min_size=4, max_size=20))
def test_no_spelling_of_a_secret_gets_into_a_syntax_error(tail: str) -> None:
    try:
        load_task("t", text=f"run: echo\nsecrets:\n  TOKEN: hunter2{tail}\n")
    except BadInput as error:
        said = str(error)
    else:
        said = ""
    assert "hunter2" not in said


# --- local paths -----------------------------------------------------------------------------------------------------


def test_local_paths(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("a.json", "b.json", "data/x"):
        (tmp_path / name).write_text(name)
    text = """
        envs: {WHERE: data}
        workdir: ./code
        file_mounts:
            /data: ./${WHERE}
            ~/conf/one.json: a.json
            ~/conf/two.json: b.json
            /data/extra: a.json
            plain: b.json
        run: ls
    """
    loaded = _load(text, cwd=tmp_path)
    assert loaded.workdir == tmp_path / "code"
    assert loaded.mounts == (
        LocalMount("/data", folder=tmp_path / "data"),
        LocalMount("~/conf", files=(("one.json", tmp_path / "a.json"), ("two.json", tmp_path / "b.json"))),
        LocalMount("/data/.", files=(("extra", tmp_path / "a.json"),)),
        LocalMount(".", files=(("plain", tmp_path / "b.json"),)),
    )
    assert [m.target for m in loaded.task.mounts] == ["/data", "~/conf", "/data/.", "."]
    out = tmp_path / "out"
    out.mkdir()
    digests = {m.target: m.contents().pack(into=out).digest for m in loaded.mounts}
    task = loaded.uploaded(workdir_digest="w", mount_digests=digests)
    assert task.workdir_digest == "w"
    assert {m.target: m.digest for m in task.mounts} == digests
    assert len(set(digests.values())) == 4
    assert task.mounts[1] == Mount("~/conf", "a.json, b.json", "COPY", digests["~/conf"])


def test_the_home_folder_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _load("workdir: ~/\nrun: ls").workdir == tmp_path


# --- plain data ------------------------------------------------------------------------------------------------------


def test_a_task_from_plain_data() -> None:
    loaded = task_from_dict(
        {"run": "echo", "resources": {"accelerators": {"A100": 8}}, "work": {"hours": 1, "on": "x"}}
    )
    assert loaded.task.gang.groups[0].machine.accelerators == (AcceleratorWish("A100", 8),)
    assert loaded.task.work.on == "x"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"run": b"x"}, "task: a bytes cannot stand in a task"),
        ({1: "x"}, "task: keys are text, found a int"),
        ({"rnu": "x"}, "task: rnu: unknown key; did you mean 'run'?"),
    ],
)
def test_plain_data_that_is_no_task(data: Any, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        task_from_dict(data)
    assert [str(p) for p in caught.value.problems] == [said]


# --- anything at all -------------------------------------------------------------------------------------------------

_KEYS = sorted({name for fields in TABLE.values() for name in fields} | {"A100", "/data", "TOKEN", "x-y", "<<", ""})
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["A100:8", "4+", "64GB+", "4x", "aws/us-east-1", "10m", "$3", "auto", "s3://b/${X}", "2030-01-31T18:00Z"]
    ),
)
_DATA = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=6),
    max_leaves=20,
)


def _outcome(load: Any) -> str:
    """``accepted`` or ``refused``; anything but BadInput comes out as it is and fails the test."""
    try:
        load()
    except BadInput as error:
        refusal = error
    else:
        return "accepted"
    return "refused" if refusal.problems and all(p.message for p in refusal.problems) else "refused without a word"


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(_KEYS), _DATA, max_size=8))
def test_random_tasks_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    cwd = tmp_path_factory.getbasetemp()
    text = yaml.safe_dump(data, allow_unicode=True)
    from_text = _outcome(lambda: load_task("t", text=text, cwd=cwd))
    assert from_text == _outcome(lambda: task_from_dict({"run": None, **data}, cwd=cwd))


@settings(max_examples=400)
@given(st.text(max_size=60) | st.text(alphabet="ab:-{}[]&*!|>'\"%@`?,# \n\t<=0", max_size=60))
def test_random_text_is_read_or_refused(text: str) -> None:
    assert _outcome(lambda: load_task("t", text=text)) in ("accepted", "refused")


@given(st.binary(max_size=60))
def test_random_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "random.yaml"
    file.write_bytes(content)
    assert _outcome(lambda: load_task(file)) in ("accepted", "refused")


_VALID = [case["yaml"] for case in yaml.safe_load((Path(__file__).parent / "valid.yaml").read_text(encoding="utf-8"))]
_PIECES = [
    "",
    "\t",
    ":",
    "- ",
    "  ",
    "\n",
    "null",
    "-1",
    "{",
    "]",
    '"',
    "*x",
    "&x ",
    "!!int ",
    "<<: ",
    "0",
    "𝄞",
    "#",
    "1e999",
]


@settings(max_examples=200)
@given(
    st.sampled_from(_VALID),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(_PIECES)), max_size=3),
)
def test_valid_files_with_slips_are_read_or_refused(text: str, slips: list[tuple[float, int, str]]) -> None:
    for at, cut, piece in slips:
        start = int(at * len(text))
        text = text[:start] + piece + text[start + cut :]
    assert _outcome(lambda: load_task("t", text=text)) in ("accepted", "refused")
