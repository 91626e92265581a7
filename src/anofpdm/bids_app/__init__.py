"""A BIDS App: participants of a BIDS data set to a BIDS derivative, and a table over all of them."""
