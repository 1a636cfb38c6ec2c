"""What a run left behind, read back, derived from, and judged: pure, except for reading the files."""
