"""Fault injection: real commands run as processes, and are killed, starved of disk space or given bad files.

Run by `make faults` (all of it) and `make faults-sample` (a short sample), not by `make test`.
"""
