"""Memory: the n-grams of projects, stored on disk across requests and processes."""
