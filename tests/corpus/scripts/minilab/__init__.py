"""A small training package."""

VERSION = "0.3"
