"""The models that ship with the package, each in a folder with its card, facts and licence."""
