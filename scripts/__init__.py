"""Checks that the linters of the shelf do not make. Each is a program of its own; ``scripts/check.py`` runs all."""
