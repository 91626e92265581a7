"""From the series of a clinical study to one grid: brain extraction, registration, resampling, and their checks."""
