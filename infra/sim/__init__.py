"""A request's path simulated by a seed: virtual clock, lossy network, crashes, and the production policy code."""
