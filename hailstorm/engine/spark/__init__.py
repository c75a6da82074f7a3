"""Spark itself: the session, its JVM, and how code reaches its workers."""
