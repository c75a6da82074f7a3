"""Kafka as a log: topics, clients, and the reader that runs in tasks."""
