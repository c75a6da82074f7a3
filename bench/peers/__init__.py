"""Who competes: Structured Streaming, a bare batch job, and Hailstorm."""
