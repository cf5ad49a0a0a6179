"""The service: notices by tier 0, looks closer, judges, says it once, and keeps the evidence."""
