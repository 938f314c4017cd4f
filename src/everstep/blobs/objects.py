"""The object stores of the clouds, through obstore."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store, from_url

from everstep.blobs.keys import check_key, check_prefix
from everstep.model.errors import BadInput, Problem
from everstep.ports import BlobExists, BlobInfo, BlobMissing, BlobsRefuse

_METHODS = ("GET", "PUT")
_REFUSED = re.compile(r"non-2xx status code: 40[13]\b")
_MAX_PRESIGN_S = 7 * 24 * 3600.0


class ObstoreBlobs:
    """``Blobs`` in S3, Google Cloud Storage, Azure, a folder or memory.

    A conditional put is sent once and never repeated by itself: if the answer to it were lost, the repetition would
    find our own object and call it somebody else's. Then the error of the connection is raised, and the caller reads
    the object to learn who won. Everything else is repeated as obstore does.
    """

    def __init__(self, url: str, **options: Any) -> None:
        """Opens without touching the network; whether the store is there shows with the first call.

        Args:
            url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, ``file:///path``, ``memory://``.
            options: settings of obstore (``endpoint``, ``region``, ``access_key_id``, ...), and its ``client_options``,
                ``retry_config`` and ``credential_provider``. Missing ones come from the environment as usual. An
                ``endpoint`` that begins with http:// is taken at its word.

        Raises:
            BadInput: the URL or an option is not understood.
        """
        self.url = url
        try:
            self._store, self._once = _open(url, options)
        except (BaseError, ValueError, TypeError) as error:
            raise BadInput(Problem("", "blobs", f"this object store cannot be opened: {_first_line(error)}")) from error

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """See ``Blobs.put``. After a failed connection a conditional put may or may not have happened."""
        check_key(key)
        try:
            with _refusals():
                if if_absent:
                    await obstore.put_async(self._once, key, data, mode="create")
                else:
                    await obstore.put_async(self._store, key, data, mode="overwrite")
        except (AlreadyExistsError, FileExistsError) as error:
            raise BlobExists(key) from error

    async def get(self, key: str) -> bytes:
        """See ``Blobs.get``."""
        check_key(key)
        try:
            with _refusals():
                result = await obstore.get_async(self._store, key)
                return bytes(await result.bytes_async())
        except FileNotFoundError as error:
            raise BlobMissing(key) from error
        except GenericError as error:
            # In a folder: a part of the key is an object. obstore has no meaning for that, only the system's words.
            if isinstance(self._store, LocalStore) and "(os error 20)" in str(error):
                raise BlobMissing(key) from error
            raise

    async def list(self, prefix: str) -> Sequence[BlobInfo]:
        """See ``Blobs.list``."""
        check_prefix(prefix)
        # obstore matches whole parts of a key only: ask for the folder and look at the rest here.
        folder = prefix.rpartition("/")[0] or None
        found: list[BlobInfo] = []
        with _refusals():
            async for page in obstore.list(self._store, prefix=folder):
                found += (
                    BlobInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())
                    for meta in page
                    if meta["path"].startswith(prefix)
                )
        return sorted(found, key=lambda info: info.key)

    async def delete(self, key: str) -> None:
        """See ``Blobs.delete``."""
        check_key(key)
        with contextlib.suppress(FileNotFoundError), _refusals():
            await obstore.delete_async(self._store, key)

    async def presign(self, key: str, *, method: str, ttl_s: float) -> str | None:
        """See ``Blobs.presign``. ``method`` is GET or PUT, ``ttl_s`` at most a week, else ValueError."""
        check_key(key)
        if method not in _METHODS:
            raise ValueError(f"a URL can be signed for {' or '.join(_METHODS)}, not {method}")
        if not 0 < ttl_s <= _MAX_PRESIGN_S:
            raise ValueError(f"a URL can be signed for up to a week, not {ttl_s} s")
        if not isinstance(self._store, S3Store | GCSStore | AzureStore):
            return None
        with _refusals():
            return await obstore.sign_async(self._store, cast(Any, method), key, timedelta(seconds=ttl_s))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What the store says about who we are, as the port has it."""
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise BlobsRefuse(_first_line(error)) from error
    except GenericError as error:
        # A list that is refused has no meaning of its own in obstore.
        if _REFUSED.search(str(error)):
            raise BlobsRefuse(_first_line(error)) from error
        raise


def _open(url: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The store, and the same store for what must be sent only once."""
    config = dict(options)
    handed = {
        name: config.pop(name) for name in ("client_options", "retry_config", "credential_provider") if name in config
    }
    if url.startswith("memory:"):
        if options:
            raise ValueError(f"a store in memory has no option '{sorted(options)[0]}'")
        memory = MemoryStore()
        return memory, memory
    if url.startswith("file:"):
        local = from_url(url, mkdir=True)
        assert isinstance(local, LocalStore)
        return local, local
    if str(config.get("endpoint", "")).startswith("http://"):
        handed["client_options"] = {"allow_http": True, **handed.get("client_options", {})}
    once = {**handed, "retry_config": {**handed.get("retry_config", {}), "max_retries": 0}}
    return from_url(url, config=cast(Any, config), **handed), from_url(url, config=cast(Any, config), **once)


def _first_line(error: Exception) -> str:
    """The rest is obstore's own affair."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
