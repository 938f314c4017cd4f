"""The vocabulary: frozen dataclasses, enums, ids, units, errors, handshake names. Standard library only."""
