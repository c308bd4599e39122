"""A store on Lance: in a folder or on an object store, shared by many readers and writers. Start in store.py."""
