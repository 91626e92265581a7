"""Web pages: a viewer for results, and a server that segments uploaded scans. Loopback only by default."""
