"""Train on a collection: settings from the data, the split, the recipe, the run."""
