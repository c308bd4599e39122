"""Where an index keeps its items: in memory or in a folder (faiss), or on a PostgreSQL server."""
