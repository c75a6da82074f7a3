"""What runs inside Spark's Python workers: stages over Arrow batches, chained into one pass."""
