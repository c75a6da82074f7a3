"""One tick, part by part: how far the logs are, how much of that to take, trying, committing, and keeping house."""
