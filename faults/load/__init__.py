"""Clients of a server under load, and measurements of that server."""
