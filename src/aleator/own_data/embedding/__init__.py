"""Turn a collection into posteriors, streamed to a file, and read them back."""
