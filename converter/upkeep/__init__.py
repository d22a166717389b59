"""Holds a released engine package against the rules in mappings/, by reading its source and never importing it."""
