"""What the API takes and how it refuses: fields, limits, JSON and errors. Pure; below every other part of the room."""
