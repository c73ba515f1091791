"""Several methods on one task over several seeds: which runs that takes, how they are carried out, what they show."""
