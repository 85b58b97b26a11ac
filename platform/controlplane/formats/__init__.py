"""How the console writes dates, by language; named in FORMAT_MODULE_PATH."""
