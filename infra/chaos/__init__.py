"""Chaos: a private platform under load, its processes killed, frozen and cut off at random, and the proof after it."""
