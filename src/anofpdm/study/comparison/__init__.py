"""The paper's comparison: every method on the same slices."""
