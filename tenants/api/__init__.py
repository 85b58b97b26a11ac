"""The management API of this room, under /api/v1/."""
