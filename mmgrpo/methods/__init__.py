"""Functions that one published method uses, in a module of the name and folder of its YAML file."""
