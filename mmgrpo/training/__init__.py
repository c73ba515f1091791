"""The step: gather, judge, credit, learn; and the trainer that repeats it."""
