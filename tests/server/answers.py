"""What an answer that is a refusal says."""

from __future__ import annotations

from typing import Any


def kind(answer: Any) -> str:
    return str(answer.json()["error"]["kind"])


def message(answer: Any) -> str:
    return str(answer.json()["error"]["message"])
