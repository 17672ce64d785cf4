"""Memory: the n-grams of projects, kept on disk; they outlive requests and processes."""
