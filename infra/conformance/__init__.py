"""A black-box suite for any OpenAI-style server: `manage.py conformance --base-url URL --key KEY`."""
