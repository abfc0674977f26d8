"""Programs to read and to start; each says in its first lines how."""
