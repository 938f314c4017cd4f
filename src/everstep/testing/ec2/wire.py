"""EC2's query protocol, read strictly: every request must fit the model of the service that botocore ships.

A form such as ``Action=RunInstances&TagSpecification.1.Tag.1.Key=a`` becomes the structure that boto3's caller wrote.
What the model does not know is refused as EC2 does (``UnknownParameter``), and so is what has the wrong type, is no
value of an enumeration, or is missing.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Mapping
from datetime import datetime
from typing import Any


class Refused(Exception):
    """A request that EC2 would not take: ``code`` and message in its words."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


@functools.cache
def service_model(service: str) -> Any:
    """botocore's own model of a service."""
    import botocore.session

    return botocore.session.get_session().get_service_model(service)


def operation(service: str, name: str) -> Any:
    """The model of an operation. Raises Refused if the service has none of that name."""
    model = service_model(service)
    if name not in model.operation_names:
        raise Refused("InvalidAction", f"The action {name} is not valid for this web service.")
    return model.operation_model(name)


def read(name: str, form: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of an EC2 operation, by the names that boto3 uses.

    Args:
        name: of the operation, ``RunInstances``.
        form: the fields of the request, ``Action`` and ``Version`` included.

    Raises:
        Refused: the request does not fit the model.
    """
    shape = operation("ec2", name).input_shape
    tree: dict[str, Any] = {}
    for key, value in form.items():
        if key in ("Action", "Version"):
            continue
        *path, last = key.split(".")
        node = tree
        for part in path:
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                raise Refused("MalformedQueryString", f"{key}: {part} is both a value and a structure")
            node = child
        node[last] = value
    found: dict[str, Any] = {} if shape is None else _structure(shape, tree, "")
    if shape is None and tree:
        raise Refused("UnknownParameter", f"The parameter {min(tree)} is not recognized")
    check("ec2", name, found)
    return found


def check(service: str, name: str, parameters: Mapping[str, Any]) -> None:
    """Raises Refused if something is missing, of a wrong type, or out of the bounds the model gives."""
    from botocore.validate import ParamValidator

    shape = operation(service, name).input_shape
    if shape is None:
        return
    report = ParamValidator().validate(parameters, shape)
    if report.has_errors():
        text = report.generate_report()
        code = "MissingParameter" if "Missing required" in text else "InvalidParameterValue"
        raise Refused(code, text)


def _structure(shape: Any, tree: Any, where: str) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise Refused("InvalidParameterValue", f"{where}: a structure was expected")
    members = {_wire_name(name, member): (name, member) for name, member in shape.members.items()}
    found = {}
    for key, value in tree.items():
        path = f"{where}.{key}" if where else key
        if key not in members:
            raise Refused("UnknownParameter", f"The parameter {path} is not recognized")
        name, member = members[key]
        found[name] = _value(member, value, path)
    return found


def _wire_name(name: str, shape: Any) -> str:
    """As botocore's EC2 serializer names a member."""
    if "queryName" in shape.serialization:
        return str(shape.serialization["queryName"])
    location = str(shape.serialization.get("name", name))
    return location[0].upper() + location[1:]


def _value(shape: Any, value: Any, where: str) -> Any:
    if shape.type_name == "structure":
        return _structure(shape, value, where)
    if shape.type_name == "list":
        if not isinstance(value, dict):
            raise Refused("InvalidParameterValue", f"{where}: a list was expected")
        wanted = [str(i + 1) for i in range(len(value))]
        if sorted(value, key=lambda k: (len(k), k)) != wanted:
            raise Refused("InvalidParameterValue", f"{where}: a list is numbered from 1, found {sorted(value)}")
        return [_value(shape.member, value[i], f"{where}.{i}") for i in wanted]
    if not isinstance(value, str):
        raise Refused("InvalidParameterValue", f"{where}: a plain value was expected")
    try:
        return _plain(shape, value)
    except (ValueError, binascii.Error):
        raise Refused("InvalidParameterValue", f"Value ({value}) for parameter {where} is invalid.") from None


def _plain(shape: Any, value: str) -> Any:
    match shape.type_name:
        case "integer" | "long":
            return int(value)
        case "float" | "double":
            return float(value)
        case "boolean":
            if value not in ("true", "false"):
                raise ValueError(value)
            return value == "true"
        case "timestamp":
            return datetime.fromisoformat(value)
        case "blob":
            return base64.b64decode(value, validate=True)
    if getattr(shape, "enum", None) and value not in shape.enum:
        raise ValueError(value)
    return value
