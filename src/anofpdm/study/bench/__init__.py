"""Speed of the method on this machine."""
