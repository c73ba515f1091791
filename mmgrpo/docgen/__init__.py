"""Pages and lists made from the code and the YAML files: keys, rewards, methods."""
