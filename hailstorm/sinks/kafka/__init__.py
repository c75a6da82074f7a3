"""Kafka as a sink: rows as records, in transactions that hold the cursor."""
