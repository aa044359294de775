"""What is kept on disk: files written whole, private folders, the cache of tables, journals."""
