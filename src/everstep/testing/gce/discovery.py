"""The vendor's own description of its API, as a judge of requests.

google-api-python-client ships the discovery document of every Google API
(https://developers.google.com/discovery/v1/reference/apis). A request must name a method of it, with parameters and a
body that fit: unknown fields and parameters, values of no enumeration, wrong types, patterns and missing names are
refused as the vendor refuses them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

_NAMED = re.compile(r"\{(\w+)\}((?::\w+)?)")
"""``{project}`` of a path, and ``{resource}:testIamPermissions``."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_BASE64 = re.compile(r"(?:[\w+/-]{4})*(?:[\w+/-]{2}==|[\w+/-]{3}=)?")
_RANGES = {"int32": range(-(2**31), 2**31), "uint32": range(2**32)}


class Refused(Exception):
    """A request that the vendor would not take: HTTP status, its reason and words."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Called:
    """A request that fits.

    Attributes:
        method: id of the method, ``compute.instances.insert``.
        path: parameters of the path.
        query: parameters of the query, those of every method included, as their types.
        body: as it was sent.
    """

    method: str
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Method:
    described: Mapping[str, Any]
    segments: tuple[str, ...]


class Api:
    """One API. Read once, on first use: ``api("compute.v1")``."""

    def __init__(self, name: str) -> None:
        found = files("googleapiclient.discovery_cache") / "documents" / f"{name}.json"
        document: dict[str, Any] = json.loads(found.read_bytes())
        self.revision = str(document["revision"])
        self._schemas: Mapping[str, Any] = document["schemas"]
        self._common: Mapping[str, Any] = document["parameters"]
        self._prefix = "/" + document["servicePath"]
        self._methods: dict[tuple[str, int], list[_Method]] = {}
        for described in _methods(document["resources"]):
            segments = tuple(described["flatPath"].split("/"))
            self._methods.setdefault((described["httpMethod"], len(segments)), []).append(_Method(described, segments))

    def called(self, verb: str, path: str, query: Mapping[str, list[str]], body: Any) -> Called:
        """What a request asks for. Raises Refused for one that does not fit."""
        method, values = self._find(verb, path)
        described = method.described
        own: Mapping[str, Any] = described.get("parameters", {})
        found: dict[str, Any] = {}
        for name, given in query.items():
            # "$alt" is the name of "alt" that generated clients use.
            known = own.get(name) or self._common.get(name.removeprefix("$")) or self._common.get(name)
            if known is None or (name in own and own[name]["location"] != "query"):
                raise _unknown(f'Unknown name "{name}": Cannot bind query parameter.')
            found[name] = [_parameter(name, known, v) for v in given]
            if not known.get("repeated"):
                found[name] = found[name][-1]
        for name, known in own.items():
            if known["location"] == "path" and name in values:
                _parameter(name, known, values[name])
            if known.get("required") and known["location"] == "query" and name not in found:
                raise Refused(400, "required", f"Required parameter: {name}")
        wanted = described.get("request")
        if wanted is None:
            if body:
                raise Refused(400, "badRequest", f"{described['id']} takes no body")
            return Called(described["id"], values, found, {})
        self._check(wanted, body if body is not None else {}, "resource", described["id"])
        return Called(described["id"], values, found, body or {})

    def _find(self, verb: str, path: str) -> tuple[_Method, dict[str, str]]:
        parts = (
            [unquote(p) for p in path.removeprefix(self._prefix).split("/")] if path.startswith(self._prefix) else []
        )
        for method in self._methods.get((verb, len(parts)), []):
            values = {}
            for pattern, part in zip(method.segments, parts, strict=True):
                named = _NAMED.fullmatch(pattern)
                if named is not None and part.endswith(named[2]) and len(part) > len(named[2]):
                    values[named[1]] = part.removesuffix(named[2])
                elif pattern != part:
                    break
            else:
                return method, values
        raise Refused(404, "notFound", f"{verb} {path}: there is no such method")

    # --- bodies ------------------------------------------------------------------------------------------------------

    def _check(self, schema: Mapping[str, Any], value: Any, where: str, method: str) -> None:
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        kind = schema.get("type", "any")
        if kind == "object":
            self._object(schema, value, where, method)
        elif kind == "array":
            if not isinstance(value, list):
                raise _invalid(where, value, "a list was expected")
            for index, item in enumerate(value):
                self._check(schema["items"], item, f"{where}[{index}]", method)
        elif kind != "any":
            _plain(schema, value, where)

    def _object(self, schema: Mapping[str, Any], value: Any, where: str, method: str) -> None:
        if not isinstance(value, dict):
            raise _invalid(where, value, "an object was expected")
        properties: Mapping[str, Any] = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name, item in value.items():
            inner = properties.get(name, others)
            if inner is None:
                raise _unknown(f"Unknown name \"{name}\" at '{where}': Cannot find field.")
            self._check(inner, item, f"{where}.{name}", method)
        for name, inner in properties.items():
            if method in inner.get("annotations", {}).get("required", []) and name not in value:
                raise Refused(400, "required", f"Required field '{where}.{name}' not specified")


@functools.cache
def api(name: str) -> Api:
    """The API ``compute.v1``, from the installed package. Raises FileNotFoundError if it has none of that name."""
    return Api(name)


def _methods(resources: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _methods(resource.get("resources", {}))


def _parameter(name: str, known: Mapping[str, Any], text: str) -> Any:
    where = f"parameter {name}"
    match known["type"]:
        case "boolean":
            if text not in ("true", "false"):
                raise _invalid(where, text, "true or false was expected")
            return text == "true"
        case "integer":
            if not re.fullmatch(r"-?\d+", text):
                raise _invalid(where, text, "a whole number was expected")
            number = int(text)
            least, most = int(known.get("minimum", number)), int(known.get("maximum", number))
            # The page size has its bound in words alone: "Acceptable values are 0 to 500, inclusive".
            most = min(most, 500) if name == "maxResults" else most
            if not least <= number <= most:
                raise _invalid(where, text, f"must be from {least} to {most}")
            return number
    if name.endswith("alt"):
        text = text.partition(";")[0]
    _plain(known, text, where)
    return text


def _plain(schema: Mapping[str, Any], value: Any, where: str) -> None:
    kind, form = schema["type"], schema.get("format", "")
    expected: tuple[type, ...] = _TYPES[kind]
    if kind == "string" and form in ("int64", "uint64") and isinstance(value, int):
        return  # JSON of proto3 takes both
    if not isinstance(value, expected) or (isinstance(value, bool) and kind != "boolean"):
        raise _invalid(where, value, f"expected {kind}")
    if isinstance(value, str):
        _text(schema, value, where)
    elif form in _RANGES and value not in _RANGES[form]:
        raise _invalid(where, value, "out of range")


def _text(schema: Mapping[str, Any], value: str, where: str) -> None:
    form = schema.get("format", "")
    if "enum" in schema and value not in schema["enum"]:
        raise _invalid(where, value, f"must be one of {', '.join(schema['enum'])}")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        raise _invalid(where, value, f"must be a match of regex '{schema['pattern']}'")
    if form in ("int64", "uint64") and not re.fullmatch(r"-?\d{1,20}", value):
        raise _invalid(where, value, "a number was expected")
    if form == "byte" and not _BASE64.fullmatch(value):
        raise _invalid(where, value, "base64 was expected")


def _unknown(text: str) -> Refused:
    return Refused(400, "badRequest", f"Invalid JSON payload received. {text}")


def _invalid(where: str, value: Any, why: str) -> Refused:
    return Refused(400, "invalid", f"Invalid value for field '{where}': '{value}'. {why}")
