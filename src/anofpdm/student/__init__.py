"""A small network taught by the method's own masks: one look at a slice instead of a hundred."""
