"""Tests that load converted drafters in the real serving engines, on a CPU."""
