"""Brings what a task needs from this computer to the server."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.client.taskfile import LoadedTask
from everstep.client.workdir import Packed, pack_workdir
from everstep.model.units import format_size

if TYPE_CHECKING:
    from everstep.client.api import Client


def bring(client: Client, loaded: LoadedTask, say: Callable[[str], object] = lambda _: None) -> LoadedTask:
    """Uploads the workdir and the local mounts of a task, as far as the server does not hold them.

    Args:
        client: where to.
        loaded: as it was read.
        say: is told in one line what is uploaded, and what is left out.

    Returns:
        The task with their digests, ready to be submitted.
    """
    if loaded.workdir is None and not loaded.mounts:
        return loaded
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:

        def one(packed: Packed, what: str) -> str:
            for name in packed.skipped:
                say(f"warning: {what}: {name} is left out: it leads outside the folder, or is no file")
            if not client.has_upload(packed.digest):
                say(f"uploading {what}: {packed.files} files, {format_size(packed.archive_bytes)}")
            return client.upload(packed.archive)

        into = Path(folder)
        workdir = "" if loaded.workdir is None else one(pack_workdir(loaded.workdir, into=into), str(loaded.workdir))
        mounts = {mount.target: one(mount.pack(into=into), mount.target) for mount in loaded.mounts}
    return dataclasses.replace(loaded, task=loaded.uploaded(workdir_digest=workdir, mount_digests=mounts))
