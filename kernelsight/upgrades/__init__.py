"""What another version of an engine, or another engine, changes for a deployment and its load."""
