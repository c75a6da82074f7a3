"""The state of a step as a Delta table: the log, the deletion vectors, and when it is written."""
