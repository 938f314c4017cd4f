"""Brings what a task needs from this computer to the server."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.client.taskfile import LoadedTask
from everstep.client.workdir import Contents, list_workdir
from everstep.model.units import format_count, format_size

if TYPE_CHECKING:
    from everstep.client.api import Client


def look(loaded: LoadedTask, say: Callable[[str], object] = lambda _: None) -> dict[str, Contents]:
    """What `bring` would pack and upload: the workdir by "", mounts by their target.

    Args:
        loaded: as it was read.
        say: is told in one line what would be left out.

    Raises:
        BadInput: something is not there, too large or not readable.
    """
    found = {} if loaded.workdir is None else {"": list_workdir(loaded.workdir)}
    found |= {mount.target: mount.contents() for mount in loaded.mounts}
    for target, contents in found.items():
        for name in contents.skipped:
            what = target or loaded.workdir
            say(f"warning: {what}: {name} is left out: it leads outside the folder, or is no file")
    return found


def bring(client: Client, loaded: LoadedTask, say: Callable[[str], object] = lambda _: None) -> LoadedTask:
    """Uploads the workdir and the local mounts of a task, as far as the server does not hold them.

    Args:
        client: where to.
        loaded: as it was read.
        say: is told in one line what is uploaded, and what is left out.

    Returns:
        The task with their digests, ready to be submitted.

    Raises:
        BadInput: as `look`; nothing was uploaded.
    """
    found = look(loaded, say)
    if not found:
        return loaded
    digests = {}
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        for target, contents in found.items():
            packed = contents.pack(into=Path(folder))
            if not client.has_upload(packed.digest):
                files = format_count(packed.files, "file")
                say(f"uploading {target or loaded.workdir}: {files}, {format_size(packed.archive_bytes)}")
            digests[target] = client.upload(packed.archive)
    workdir = digests.pop("", "")
    return dataclasses.replace(loaded, task=loaded.uploaded(workdir_digest=workdir, mount_digests=digests))
