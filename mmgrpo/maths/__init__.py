"""Pure functions of tensors that turn rewards into advantages and log-probabilities into a loss."""
