"""Putting a server on another machine: what is sent there, how, and what is remembered here."""

from __future__ import annotations
