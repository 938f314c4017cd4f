"""Which names objects may have: those that mean the same object in every store, and never one outside it."""

from __future__ import annotations

MAX_KEY_BYTES = 1024
"""Longest key, in UTF-8: the limit of S3."""


def check_key(key: str) -> str:
    """The key itself. Raises ValueError unless it is relative, short, without ``.``, ``..``, empty parts and NUL."""
    if not key:
        raise ValueError("the key of an object is empty")
    _check_text(key)
    for part in key.split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"{key!r} is no key of an object: it must be relative, without '.', '..' or empty parts")
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself: the beginning of a key, or empty. Raises ValueError for what no key begins with."""
    _check_text(prefix)
    *folders, _ = prefix.split("/")
    if any(part in ("", ".", "..") for part in folders):
        raise ValueError(f"{prefix!r}: no key of an object begins with it")
    return prefix


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError(f"{text!r}: no key of an object has a NUL in it")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r}: no key of an object, it is not valid Unicode") from error
    if size > MAX_KEY_BYTES:
        raise ValueError(f"{text[:40]!r}...: {size} bytes, the key of an object has at most {MAX_KEY_BYTES}")
