"""The graph of the script's objects: a copy of it, and the way back into fresh objects, in place.

`capture` walks breadth first from the spaces (globals of user modules, locals of frames) and takes objects apart by
their kind (`kinds`): what each refers to is a part of the graph, so that aliasing stays. `restore` first pairs saved
objects with fresh ones on the same access path (`pair`), then writes (`fill`). Library modules and classes are found by
name and never walked; nothing is left out silently: what cannot be rebuilt is a `Problem` at the save and a `Poison`
after the restore.
"""

from everstep.train.script.graph import (
    kinds_arrays,
    kinds_attributes,
    kinds_code,
    kinds_containers,
    kinds_generators,
    kinds_live,
    kinds_memory_files,
    kinds_objects,
    kinds_tensors,
    kinds_values,
    kinds_wrapped,
)
from everstep.train.script.graph.capture import capture, setup_digests
from everstep.train.script.graph.compare import difference, digest
from everstep.train.script.graph.fill import Restoring, restore
from everstep.train.script.graph.kinds import Hopeless
from everstep.train.script.graph.kinds_registered import register
from everstep.train.script.graph.poison import Poison, Poisoned, refuse_with
from everstep.train.script.graph.records import (
    Captured,
    Made,
    Memory,
    Problem,
    Restored,
    Settings,
    Space,
    Unrestorable,
)

# The order counts: of the rules that apply to a type, the first one is taken.
kinds_live.install()
kinds_memory_files.install()
kinds_generators.install()
kinds_wrapped.install()
kinds_tensors.install()
kinds_code.install()
kinds_containers.install()
kinds_arrays.install()
kinds_containers.install_derived()
kinds_attributes.install()
kinds_values.install()
kinds_objects.install()

__all__ = [
    "Captured",
    "Hopeless",
    "Made",
    "Memory",
    "Poison",
    "Poisoned",
    "Problem",
    "Restored",
    "Restoring",
    "Settings",
    "Space",
    "Unrestorable",
    "capture",
    "difference",
    "digest",
    "refuse_with",
    "register",
    "restore",
    "setup_digests",
]
