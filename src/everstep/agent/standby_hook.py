"""Runs inside an interpreter that is kept ready to become a rank; see ``standby``. Standard library, any Python 3.8+.

Stands in the way of the interpreter under the name ``sitecustomize``, at the one place before the user's script where
code can run: imports what the script imports first, waits for the word to go, and steps out of the way, so that it is
the interpreter itself that runs the script, as always.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Callable

PROBED = 77
"""Exit code that tells: this interpreter does let us stand in its way."""

_LEAVE_IT = (b"TORCH_", b"TORCHDYNAMO", b"TORCHINDUCTOR", b"dynamo", b"inductor")
"""A script that speaks of these may set what torch's compiler reads when it is imported."""


def _step_aside() -> None:
    """Take ourselves out of the import path; variables of the environment are put right when it is known how."""
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != own]
    sys.path_importer_cache.pop(own, None)


def _first_imports(path: str) -> tuple[bytes, list[str]]:
    """What the script imports before anything else happens in it, in its order; nothing if torch is not among it.

    Only the standard library, numpy and torch: whatever else is imported may look at the environment or do things.
    """
    import ast

    allowed = set(getattr(sys, "stdlib_module_names", ())) | {"numpy", "torch"}
    with open(path, "rb") as file:
        source = file.read()
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            wanted = [node.module or ""]
        else:
            break
        if not all(name.partition(".")[0] in allowed for name in wanted):
            break
        names += wanted
    if not any(name.partition(".")[0] == "torch" for name in names):
        return source, []
    if b"optim" in source and not any(word in source for word in (*_LEAVE_IT, b"everstep")):
        # Every optimizer imports it when it is made, unless everstep.train puts that off (``train/compiler.py``).
        names.append("torch._dynamo")
    return source, names


def _wait(fd: int) -> Any:
    """The word to go; ends the process if nobody will say it."""
    import json

    data = b""
    while not data.endswith(b"\n"):
        more = os.read(fd, 1 << 16)
        if not more:
            os._exit(0)
        data += more
    os.close(fd)
    return json.loads(data)


def _still_true(word: dict[str, Any], path: str, source: bytes, *, shadowed: bool) -> bool:
    """Whether the script and its folder are what they were, and nothing in the folder shadows what was imported.

    ``shadowed``: what lies in the folder would have come first, had the script been started now.
    """
    with open(path, "rb") as file:
        if file.read() != source:
            return False
    if not os.path.samestat(os.stat("."), os.stat(word["cwd"])):
        return False
    if not shadowed:
        return True
    beside = {name.partition(".")[0] for name in os.listdir(os.path.dirname(os.path.realpath(path)))}
    return not beside & {name.partition(".")[0] for name in sys.modules}


def _stand_by() -> None:
    told = os.environ["EVERSTEP_STANDBY"]
    _step_aside()
    if told == "probe":
        os._exit(PROBED)
    number, path = told.split(":", 1)
    # Not of the environment: our folder stays on the path of the runner that may take the place of this process.
    hook = {"EVERSTEP_STANDBY": told}
    _real_sitecustomize()
    del os.environ["EVERSTEP_STANDBY"]
    runner, look = _shim(hook)
    source, ready = b"", True
    try:
        source, names = _first_imports(path)
        for name in [] if runner else names:
            __import__(name)
        if runner:
            _import_runner()
    except Exception:  # the script shall fail by itself, in its own words
        ready = False
    try:
        os.write(int(number), b"!")  # all that can be done in advance is done
    except OSError:
        os._exit(0)  # nobody waits for us
    word = _wait(int(number))
    try:
        ready = ready and _still_true(word, path, source, shadowed=not runner)
    except OSError:
        ready = False
    if ready:
        for name in word["unset"]:
            os.environ.pop(name, None)
        os.environ.update(word["set"])
        ready = look()
    if not ready:
        # Begin anew: nothing of the script has run yet.
        os.chdir(word["cwd"])
        os.execvpe(word["argv"][0], word["argv"], word["env"])


def _import_runner() -> None:
    """What runs the script imports torch before the script does, and itself; it finds both."""
    library = os.path.join(os.environ["EVERSTEP_SHIM"], "library")
    sys.path.insert(0, library)
    try:
        __import__("everstep.train.run")
    finally:
        sys.path.remove(library)


def _shim(hook_of_ours: dict[str, str]) -> tuple[bool, Callable[[], bool]]:
    """What the start-up shim put off while we wait: the script may be one that it runs in another way.

    Returns:
        Whether this is what runs the script in another way (then it is at its second start), and what is to be called
        when the time has come; it gives False where all is to begin anew.
    """
    if "EVERSTEP_SHIM" not in os.environ:
        return False, lambda: True
    from importlib import import_module

    hook = os.path.join(os.environ["EVERSTEP_SHIM"], "hook")
    sys.path.insert(0, hook)
    with contextlib.suppress(Exception):  # it is tried again below, where the script can be told
        for name in ("act", "look", "ledger"):
            import_module(f"everstep_shim.{name}")
    runner = False
    with contextlib.suppress(Exception):
        runner = import_module("everstep_shim.act").stand_in(hook_of_ours)

    def look() -> bool:
        fits = True
        try:
            fits = import_module("everstep_shim.act").awake()
            if fits:
                import_module("everstep_shim.act").act()
        except Exception as error:
            print(f"everstep: not resumed automatically ({type(error).__name__}: {error})", file=sys.stderr, flush=True)
        for name in [name for name in sys.modules if name.partition(".")[0] == "everstep_shim"]:
            del sys.modules[name]
        sys.path.remove(hook)
        return fits

    return runner, look


def _real_sitecustomize() -> None:
    """Run the one that we hide, if there is one. As in ``shim.startup``: each is copied without the other."""
    from importlib import machinery, util

    spec = machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        own = sys.modules["sitecustomize"]
        module = util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            if error.name != "sitecustomize":
                raise
            sys.modules["sitecustomize"] = own  # another hook of ours, and there is no real one behind it


if __name__ == "sitecustomize" and "EVERSTEP_STANDBY" in os.environ:
    _stand_by()
    if sys.modules["sitecustomize"].__dict__ is globals():
        # As if there were none; `site` takes this for that.
        raise ImportError("there is no sitecustomize", name="sitecustomize")
