"""A model from a group's own data in one run: prepare, train, calibrate, distil, and a page about the result."""
