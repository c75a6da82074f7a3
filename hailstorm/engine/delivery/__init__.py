"""Outboxes to sinks: what a commit says, delivered in order, while the next tick runs."""
