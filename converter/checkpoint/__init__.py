"""Bytes on disk: safetensors headers, reading, streaming and atomic writing. Knows nothing of EAGLE."""
