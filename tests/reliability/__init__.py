"""Faults put in at fixed points of the real command, and random ones for long: what must hold after each of them.

`shim.c` stands before the C library and counts calls below a pattern of paths; at the n-th it fails the call, sends a
signal or runs out of space. `server.py` runs the command under it, a forked process each; `rooms.py` says what must
hold.
"""
