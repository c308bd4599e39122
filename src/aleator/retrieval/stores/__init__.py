"""Where an index keeps its items: in memory or in a folder (faiss), on a PostgreSQL server, or on Lance."""
