"""Where an index keeps its items: in memory or a folder (faiss), or on a PostgreSQL server."""
