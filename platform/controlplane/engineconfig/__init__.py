"""Engine configurations as data: what a pool's engines run, by version. docs/engine-configurations.md."""
