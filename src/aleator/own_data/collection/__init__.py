"""Read a user's collection: items, labels and everything that is wrong with them."""
