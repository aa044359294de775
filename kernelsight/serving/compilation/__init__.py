"""What makes the scheduler's rules fast: compiled when they are needed, kept, carried and linked."""
