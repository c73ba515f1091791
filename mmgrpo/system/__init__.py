"""The machine, the console, files, the network and the packages: what the engine stands on and no formula needs."""
