"""The pages: a look at results, and a server that segments what is uploaded. On loopback unless told otherwise."""
