"""``replace`` of ``dataclasses``, quickly: every event of every job makes two or three states of thirty fields."""

from __future__ import annotations

import functools
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The same one to the type checker, which knows the names and types of its keywords.
    from dataclasses import replace
else:

    def replace(value, **changes):
        """A value like this one but for some fields.

        Args:
            value: of a dataclass whose fields are all arguments of its constructor, by position too.
            changes: new values by the names of fields; raises TypeError for a name that is none.
        """
        cls = type(value)
        read, place = _form(cls)
        values = list(read(value))
        for name, new in changes.items():
            if name not in place:
                raise TypeError(f"{cls.__name__} has no field '{name}'")
            values[place[name]] = new
        return cls(*values)


@functools.cache
def _form(cls: type[Any]) -> tuple[Any, dict[str, int]]:
    names = [field.name for field in fields(cls)]
    if len(names) < 2 or not all(field.init and not field.kw_only for field in fields(cls)):
        raise TypeError(f"{cls.__name__} cannot be made from its fields alone, by position")
    return attrgetter(*names), {name: at for at, name in enumerate(names)}


__all__ = ["replace"]
