"""PostgreSQL as a sink: tables, COPY, and what its errors mean."""
