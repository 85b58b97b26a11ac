"""Documents of a sealed period: rated, numbered, posted, paid; and their files."""
