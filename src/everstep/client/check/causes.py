"""What most likely made two runs differ, and what to do about it: rules of thumb, said as such."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from everstep.client.check.compare import Difference, Part

_ROUNDING = 1e-4
#: Calls whose result is another one in every process -> what is to be done.
_NEW_EACH_TIME = {
    "time.time": "derive nothing that matters from the clock",
    "time.time_ns": "derive nothing that matters from the clock",
    "time.perf_counter": "derive nothing that matters from the clock",
    "time.monotonic": "derive nothing that matters from the clock",
    "datetime.now": "derive nothing that matters from the clock",
    "datetime.datetime.now": "derive nothing that matters from the clock",
    "os.urandom": "draw from a seeded generator",
    "os.getpid": "derive nothing that matters from the process",
    "uuid.uuid4": "draw from a seeded generator",
    "secrets.randbits": "draw from a seeded generator",
    "torch.seed": "write torch.manual_seed(0)",
    "torch.random.seed": "write torch.manual_seed(0)",
}
#: Calls that are fine with a seed.
_WANT_A_SEED = frozenset(
    {"numpy.random.default_rng", "np.random.default_rng", "random.Random", "numpy.random.RandomState", "random.seed"}
    | {"np.random.RandomState", "np.random.seed", "numpy.random.seed", "random.SystemRandom"}
)


def why_not_deterministic(found: Sequence[Difference], script: Path | None, *, cuda: bool) -> str:
    """Why two plain runs from the same initial random state may differ."""
    suspects = list(_suspects(script)) if script is not None else []
    size = max((d.size for d in found if d.size is not None), default=None)
    # A call in the script counts for more than the size of the difference, which grows with the steps.
    if suspects:
        return "likely " + "; or ".join(suspects[:3])
    if size is not None and size < _ROUNDING:
        kernels = "nondeterministic kernels on the GPU" if cuda else "threads that add up in another order each time"
        return f"likely {kernels}: the difference is of the size of rounding errors; {_strict(cuda)}"
    if cuda:
        return f"possibly nondeterministic kernels on the GPU; {_strict(cuda)}"
    return "something new in every process decides: time, process number, unseeded generator, order of threads or files"


def why_not_exact(found: Sequence[Difference], plain_found_cuda: bool) -> str:
    """Why a resumed run may differ from a plain one, where two plain ones do not."""
    parts = {difference.part for difference in found}
    if parts <= {Part.FILE, Part.STDOUT}:
        return _why_outputs(found)
    if Part.STEPS in parts:
        return "likely the position in the data: the relaunch did another number of steps than were left"
    if any(d.part is Part.OPTIMIZER and ("missing" in d.what or ".step'" in d.name) for d in found):
        return "likely the optimizer's state: it began anew; save and load optimizer.state_dict()"
    if any(d.part is Part.GROUPS for d in found):
        return "likely the scheduler's state: a setting of the optimizer differs; save and load scheduler.state_dict()"
    if Part.RANDOM in parts:
        return (
            "likely the random state: shuffling, dropout and augmentation drew other numbers after the relaunch; "
            "it is not among what came back"
        )
    size = max((d.size for d in found if d.size is not None), default=None)
    if size is not None and size < _ROUNDING and plain_found_cuda:
        return f"likely nondeterministic kernels on the GPU; {_strict(True)}"
    if Part.OPTIMIZER in parts:
        return (
            "likely the optimizer's state, as momentum: save and load optimizer.state_dict(); "
            "if that comes back, the order of the data"
        )
    return "likely the order of the data, or an object that is not among what came back"


def _why_outputs(found: Sequence[Difference]) -> str:
    first = found[0]
    if "lines instead of" in first.what or "bytes instead of" in first.what:
        return "likely appended to again after the relaunch: what was written after the last save stands there twice"
    return "written from something that did not come back; the trained state itself is the same"


def _strict(cuda: bool) -> str:
    if cuda:
        return "write torch.use_deterministic_algorithms(True) and set CUBLAS_WORKSPACE_CONFIG=:4096:8"
    return "write torch.use_deterministic_algorithms(True), or torch.set_num_threads(1)"


def _suspects(script: Path) -> Iterator[str]:
    """``train.py:12 calls time.time(): ...``, in the order of the lines."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: node.lineno):
        name = ast.unparse(call.func)
        where = f"{script.name}:{call.lineno} calls {name}()"
        if name in _NEW_EACH_TIME:
            yield f"{where}: {_NEW_EACH_TIME[name]}"
        elif name in _WANT_A_SEED and not call.args and not call.keywords:
            yield f"{where} without a seed: give it one"
