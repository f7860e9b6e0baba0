"""The command line and what it shows. Everything slow is imported when a command needs it."""
