"""Object stores by URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.blobs import open_blobs, registry
from everstep.blobs.folder import FolderBlobs
from everstep.blobs.objects import ObstoreBlobs
from everstep.model.errors import BadInput


def test_urls_open_object_stores(tmp_path: Path) -> None:
    folder = open_blobs(f"file://{tmp_path}/with%20space")
    assert isinstance(folder, FolderBlobs)
    assert folder.root == tmp_path / "with space"
    assert isinstance(open_blobs("memory://"), ObstoreBlobs)
    assert isinstance(open_blobs("s3://bucket/prefix", region="us-east-1"), ObstoreBlobs)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("ftp://me:secret@host", {}, "no object store is called 'ftp'; known: az://, file://, gs://, memory://, s3://"),
        ("folder", {}, "an object store is named by a URL; known: az://, file://, gs://, memory://, s3://"),
        ("file://", {}, "'file://' names no folder; write file:///absolute/path"),
        ("file://relative", {}, "'file://relative' names no folder; write file:///absolute/path"),
        ("memory://", {"region": "x"}, "this object store cannot be opened: a store in memory has no option 'region'"),
    ],
)
def test_bad_urls_get_one_line(
    url: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("az", "file", "gs", "memory", "s3")
    monkeypatch.setattr(registry, "BUILT_IN", {name: registry.BUILT_IN[name] for name in names})
    with pytest.raises(BadInput) as refused:
        open_blobs(url, **options)
    assert str(refused.value) == f"blobs: {message}"


@pytest.mark.parametrize(("url", "options"), [("s3://bucket", {"no_such_option": "x"}), ("s3://", {"region": "x"})])
def test_what_obstore_does_not_understand_gets_one_line(url: str, options: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="this object store cannot be opened: ") as refused:
        open_blobs(url, **options)
    assert "\n" not in str(refused.value)
