"""Infrastructure of the engine: the machine, the console, files, the network and packages."""
