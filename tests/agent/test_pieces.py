"""The small parts, each by itself."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent import bundle, environment, logs, outputs, unpack
from everstep.agent.environment import Node
from everstep.agent.link import Backoff, LinkDown
from everstep.agent.mailbox import Mailbox
from everstep.agent.masking import Masker, mask_text
from everstep.agent.orders import BadOrders, Peer, Stop, parse
from everstep.agent.outcome import Circumstances, Exit, outcome_of
from everstep.agent.probe import ProbeListener, unreachable
from everstep.agent.reports import ReportFolder, fact_message
from everstep.agent.settings import Settings, SettingsError
from everstep.model import handshake as hs

# ---- masking -------------------------------------------------------------------------------------------------------

_SECRET = st.text(alphabet="abc", min_size=3, max_size=6)


@given(st.lists(_SECRET, min_size=1, max_size=3), st.lists(st.text(alphabet="abcd", max_size=5), max_size=12))
def test_no_secret_passes_however_it_is_torn(secrets: list[str], pieces: list[str]) -> None:
    masker = Masker(secrets)
    out = b"".join(masker.feed(piece.encode()) for piece in pieces) + masker.flush()
    assert not any(secret.encode() in out for secret in secrets)


@given(st.lists(st.text(max_size=5), max_size=12))
def test_text_without_secrets_passes_unchanged(pieces: list[str]) -> None:
    masker = Masker(["a-secret-that-is-not-there"])
    whole = "".join(pieces).replace("a-secret-that-is-not-there", "")
    assert masker.feed(whole.encode()) + masker.flush() == whole.encode()


def test_lines_of_a_key_are_masked_one_by_one() -> None:
    key = "-----BEGIN-----\nabcdefghij\n"
    assert mask_text("see abcdefghij here", [key]) == "see *** here"


# ---- outcome -------------------------------------------------------------------------------------------------------

CALM = Circumstances(ranks=2, asked=False, signalled=False, saved=False, complete=False)


@pytest.mark.parametrize(
    ("codes", "changes", "outcome", "rank"),
    [
        ([0, 0], {}, hs.OUTCOME_OK, None),
        ([0, 0], {"asked": True}, hs.OUTCOME_OK, None),
        ([0, 0], {"asked": True, "signalled": True}, hs.OUTCOME_STOPPED, None),
        ([0, 0], {"asked": True, "signalled": True, "saved": True}, hs.OUTCOME_SAVED, None),
        ([0, 0], {"asked": True, "signalled": True, "complete": True}, hs.OUTCOME_OK, None),
        ([75, 75], {}, hs.OUTCOME_SAVED, 0),
        ([75, 0], {"asked": True}, hs.OUTCOME_SAVED, 0),
        ([75, -9], {"asked": True}, hs.OUTCOME_SAVED, 1),
        ([-15, -15], {"asked": True}, hs.OUTCOME_STOPPED, 0),
        ([1, -9], {}, hs.OUTCOME_FAILED, 0),
        ([0, -9], {}, hs.OUTCOME_FAILED, 1),
        ([76, -9], {}, hs.OUTCOME_FAILED, 0),
        ([75, 1], {}, hs.OUTCOME_FAILED, 1),
        ([0], {}, hs.OUTCOME_FAILED, None),
        ([], {"asked": True}, hs.OUTCOME_STOPPED, None),
    ],
)
def test_outcomes(codes: list[int], changes: dict[str, bool], outcome: str, rank: int | None) -> None:
    seen = Circumstances(**{**{name: getattr(CALM, name) for name in CALM.__dataclass_fields__}, **changes})
    found, decisive = outcome_of([Exit(number, code) for number, code in enumerate(codes)], seen)
    assert (found, decisive.rank if decisive else None) == (outcome, rank)


@pytest.mark.parametrize(("rc", "signum"), [(-9, 9), (137, 9), (143, 15), (1, None), (255, None), (0, None)])
def test_signal_of_an_exit(rc: int, signum: int | None) -> None:
    assert Exit(0, rc).signal == signum


# ---- orders --------------------------------------------------------------------------------------------------------


def test_orders_of_a_newer_server_are_read() -> None:
    orders = parse(
        {
            "version": 3,
            "phase": "run",
            "attempt": 2,
            "spec": {"job": "j", "run": "x", "new_key": 1, "setup": None},
            "peers": [{"rank": 0, "address": "a", "probe_port": 1, "color": "red"}],
            "master": {"address": "a", "port": 5},
            "node_rank": None,
            "stop": {"save": True, "grace_s": 3, "reason": "r"},
            "future": [],
        }
    )
    assert orders.peers == (Peer(0, "a", 1),)
    assert (orders.master, orders.stop) == (("a", 5), Stop(True, 3.0, "r"))
    assert (orders.spec.setup, orders.spec.stop_grace_s) == ("", 30.0)


@pytest.mark.parametrize(("told", "rank"), [(None, 3), (1, 1)])
def test_outside_an_attempt_the_slot_is_the_rank(told: int | None, rank: int) -> None:
    """Or a set-up that does something on one machine only would do it on all."""
    document = {"version": 1, "phase": "prepare", "spec": {"job": "j", "slot": 3}, "node_rank": told}
    env = environment.base(Node("i-1", "a", 0, Path(), Path(), "mark"), {}, parse(document))
    assert {env[f"{name}_NODE_RANK"] for name in ("EVERSTEP", "SKYPILOT", "SKYPILOT_SETUP")} == {str(rank)}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"phase": "hold"}, "version: expected int, got NoneType"),
        ({"version": True, "phase": "hold"}, "version: expected int, got bool"),
        ({"version": 1, "phase": "dance"}, "phase: unknown phase 'dance'"),
        ({"version": 1, "phase": "check"}, "attempt: missing in phase check"),
        ({"version": 1, "phase": "run", "attempt": 1}, "master: missing in phase run"),
        ({"version": 1, "phase": "hold", "spec": []}, "spec: expected an object, got list"),
        ({"version": 1, "phase": "hold", "spec": {"ranks_per_node": 0}}, "ranks_per_node: expected at least 1"),
        ({"version": 1, "phase": "hold", "exec": [{"id": "../x", "command": ""}]}, "exec: id '../x' is not made of"),
        ({"version": 1, "phase": "hold", "save": {"by": 3}}, "seq: expected int, got NoneType"),
        ({"version": 1, "phase": "hold", "stop": {"grace_s": "1"}}, "grace_s: expected a number, got str"),
    ],
)
def test_bad_orders_name_the_key(document: dict[str, Any], text: str) -> None:
    with pytest.raises(BadOrders) as caught:
        parse(document)
    assert text in str(caught.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_KEYS = [value for name, value in vars(hs).items() if name.startswith(("ORDERS_", "SPEC_"))]


@given(st.dictionaries(st.sampled_from(_KEYS), _JSON), st.dictionaries(st.sampled_from(_KEYS), _JSON))
def test_no_document_does_worse_than_being_refused(document: dict[str, Any], spec: dict[str, Any]) -> None:
    with contextlib.suppress(BadOrders):
        parse({**document, "spec": spec, "version": 1, "phase": "hold"})


# ---- folders -------------------------------------------------------------------------------------------------------


def tar_of(*members: tarfile.TarInfo) -> tarfile.TarFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            member.size = 1 if member.isfile() else 0
            tar.addfile(member, io.BytesIO(b"x"))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    return info


@pytest.mark.parametrize(
    "members",
    [
        [entry("../out")],
        [entry("/out")],
        [entry("a/../../out")],
        [entry("a", tarfile.SYMTYPE, "/"), entry("a/out")],
        [entry("a", tarfile.SYMTYPE, "../..")],
        [entry("a/b", tarfile.SYMTYPE, "../../out")],
        [entry("in", tarfile.SYMTYPE, "."), entry("in/out")],
        [entry("a", tarfile.LNKTYPE, "../out")],
        [entry("a", tarfile.FIFOTYPE)],
        [entry("a", tarfile.CHRTYPE)],
    ],
)
def test_nothing_is_unpacked_outside(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with tar_of(entry("first"), *members) as tar, pytest.raises(unpack.BadArchive):
        unpack.unpack(tar, target)
    assert list(tmp_path.rglob("*")) == [target], "nothing was written, not even the good part"


def test_links_left_by_users_do_not_lead_outside(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "data").symlink_to(outside)
    with tar_of(entry("data/file")) as tar, pytest.raises(unpack.BadArchive):
        unpack.unpack(tar, target)
    assert list(outside.iterdir()) == []


def test_unpacking_over_an_older_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("stays")
    (tmp_path / "link").symlink_to("mine")
    with tar_of(entry("link"), entry("deep/file"), entry("deep/to", tarfile.SYMTYPE, "file")) as tar:
        unpack.unpack(tar, tmp_path)
    assert (tmp_path / "mine").read_text() == "stays"
    assert (tmp_path / "link").read_text() == "x"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "deep" / "to").read_text() == "x"


def test_names_of_outputs(tmp_path: Path) -> None:
    assert [outputs.output_name(text) for text in ("out", "./a/b/", "~/ck", "/data/x", "../x", ".")] == [
        "out",
        "a/b",
        "ck",
        "data/x",
        "x",
        "workdir",
    ]
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("x")
    (tmp_path / "d" / "l").symlink_to("/etc/passwd")
    assert [name for name, _ in outputs.files_of([("out", tmp_path / "d"), ("f", tmp_path / "d" / "f")])] == [
        "out/f",
        "f",
    ]


# ---- reports -------------------------------------------------------------------------------------------------------


def test_reports_survive_what_users_write(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path)
    assert (folder.in_use(), folder.progress(), folder.new_facts()) == (False, None, [])
    (tmp_path / "progress-x.json").write_text("{}")
    (tmp_path / "progress-3.json").write_text('{"step": "many", "t": NaN, "metrics": [1]}')
    (tmp_path / "facts-0.jsonl").write_text('[]\n{"kind": 5}\n{"kind": "saved", "step": true}\n{"kind": "saved", "st')
    assert folder.in_use()
    progress = folder.progress()
    assert progress is not None
    assert (progress.rank, progress.step, progress.t, progress.metrics) == (3, None, None, {})
    facts = folder.new_facts()
    assert [fact_message(fact) for _, fact in facts] == [None]
    with open(tmp_path / "facts-0.jsonl", "a") as file:
        file.write('ep": 4}\n')
    ((rank, fact),) = folder.new_facts()
    message = fact_message(fact)
    assert message is not None
    assert (rank, message[0], message[1]["step"], message[1]["durable"]) == (0, hs.MSG_SAVED, 4, False)


def test_verdicts_of_audits_are_passed_on_as_text(tmp_path: Path) -> None:
    fact = {"kind": "audit", "verdict": "differs", "save": "2:8", "text": "audit of save 2:8: not exact", "begin": 8}
    told = hs.MSG_AUDITED, {"save": "2:8", "verdict": "differs", "text": "audit of save 2:8: not exact"}
    assert fact_message(fact) == told
    assert fact_message({"kind": "audit", "save": None}) is None


def test_tail_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert logs.tail(path) == ""
    path.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert logs.tail(path).splitlines() == [f"line {number}" for number in range(9970, 10_000)]


# ---- loop, link, probe, settings -----------------------------------------------------------------------------------


def test_mailbox_runs_everything_in_order_and_survives_errors() -> None:
    now = [0.0]
    box = Mailbox(lambda: now[0])
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("surprise")

    def start() -> None:
        box.later(2.0, lambda: done.append("second"))
        box.later(1.0, lambda: done.append("first"))
        box.later(1.0, lambda: done.append("never")).cancel()
        box.later(3.0, box.stop)
        now[0] = 5.0

    box.post(fail)
    box.post(start)
    box.run()
    assert done == ["first", "second"]


def test_mailbox_keeps_its_timers_under_a_rain_of_signals() -> None:
    """A timed wait that a signal interrupts close to its end must still end."""
    box = Mailbox()
    fired = 0

    def tick() -> None:
        nonlocal fired
        fired += 1
        if fired == 100:
            box.stop()
        else:
            box.later(0.005, tick)

    main = threading.main_thread().ident
    assert main is not None
    raining = threading.Event()

    def rain() -> None:
        while not raining.wait(0.0049):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=rain)
    thread.start()
    try:
        box.post(tick)
        box.run()
    finally:
        raining.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert fired == 100


def test_backoff_grows_is_bounded_and_heeds_the_server() -> None:
    backoff = Backoff(0.1, 3.0)
    pauses = [backoff.next_s() for _ in range(20)]
    assert all(0.05 <= pause <= 3.0 for pause in pauses)
    assert all(pause >= 1.5 for pause in pauses[6:])
    assert backoff.next_s(LinkDown("busy", retry_after_s=7.0)) == 7.0
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_probe_knows_the_machine_it_means() -> None:
    listener = ProbeListener("i-right")
    try:
        right = Peer(0, "127.0.0.1", listener.port, "i-right")
        wrong = Peer(1, "localhost", listener.port, "i-other")
        assert unreachable([right, wrong], whole_s=0.3) == ["localhost"]
        assert unreachable([]) == []
    finally:
        listener.close()


GOOD_BOOT = {hs.BOOT_SERVER: "http://h:1/", hs.BOOT_ROOT: "/r", hs.BOOT_INSTANCE: "i"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({hs.BOOT_SERVER: "h:1"}, "EVERSTEP_SERVER: expected http(s)://HOST:PORT, got 'h:1'"),
        ({hs.BOOT_ROOT: "r"}, "EVERSTEP_ROOT: expected an absolute path, got 'r'"),
        ({hs.BOOT_INSTANCE: ""}, "EVERSTEP_INSTANCE_ID: missing"),
        ({hs.BOOT_CA_FINGERPRINT: "xyz"}, "EVERSTEP_CA_SHA256: expected 64 hexadecimal digits"),
        ({hs.BOOT_CA_FINGERPRINT: "0" * 64}, "EVERSTEP_CA_SHA256 is set, so EVERSTEP_SERVER must be https://"),
    ],
)
def test_boot_environment_is_checked(changes: dict[str, str], text: str) -> None:
    assert Settings.from_environment(GOOD_BOOT).server == "http://h:1"
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({**GOOD_BOOT, **changes})
    assert str(caught.value) == text


# ---- the bundle ----------------------------------------------------------------------------------------------------


def test_bundle_is_deterministic_and_complete(tmp_path: Path) -> None:
    one, two = bundle.build_pyz(tmp_path / "one.pyz"), bundle.build_pyz(tmp_path / "two.pyz")
    assert one.read_bytes() == two.read_bytes()
    assert os.access(one, os.X_OK)


def test_bundle_runs_on_the_oldest_python_and_says_what_is_missing(pyz: Path, old_python: str) -> None:
    run = subprocess.run([old_python, str(pyz)], env={}, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (
        2,
        "everstep agent: EVERSTEP_SERVER: expected http(s)://HOST:PORT, got ''\n",
    )
    run = subprocess.run([old_python, str(pyz), "dance"], env={}, capture_output=True, text=True, check=False)
    assert run.returncode == 2


def test_agent_imports_nothing_but_the_standard_library_and_the_handshake() -> None:
    code = """if True:
        import sys
        before = set(sys.modules)
        import everstep.agent.program, everstep.agent.keeper, everstep.agent.bundle
        ours = ("everstep", "everstep.model", "everstep.model.handshake")
        new = set(sys.modules) - before
        alien = [name for name in new if name.split(".")[0] not in sys.stdlib_module_names and name not in ours]
        print([name for name in alien if not name.startswith("everstep.agent")])
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
