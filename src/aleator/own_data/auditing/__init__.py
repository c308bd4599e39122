"""Find what is wrong with a collection: label errors, near duplicates, confused classes, odd ones out."""
