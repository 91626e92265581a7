"""How data sets lie on disk: one file a layout."""
