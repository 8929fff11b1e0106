"""What a run tells its reader: one record, and its views as JSON, Markdown and on the console. No torch."""
