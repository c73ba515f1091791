"""Pure functions of tensors: what turns rewards into advantages and log-probabilities into a loss."""
