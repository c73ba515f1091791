"""The table of one GPU: models of published shapes with random weights, against the bare passes that they need."""
